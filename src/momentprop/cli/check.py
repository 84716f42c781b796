"""`momentprop check`: measures how accurate the propagation is on the user's network."""

import dataclasses
import importlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import momentprop
from momentprop.checking.methods import JOINT, PROBES
from momentprop.errors import UserError


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command(epilog="Example: momentprop check nets:lenet --data x.npy --variance 0.01 --html report.html")(check)


def check(
    context: typer.Context,
    factory: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="A function that returns the network.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="The inputs: a .npy file, or a tensor in a .pt file.")],
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help="The weights: .safetensors or .pt.")] = None,
    variance: Annotated[float | None, typer.Option(min=0.0, help="The variance of every input.")] = None,
    std: Annotated[float | None, typer.Option(min=0.0, help="Their standard deviation instead.")] = None,
    dropout: Annotated[bool, typer.Option("--dropout", help="Turn the network's dropout on.")] = False,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Methods, separated by commas: ap1,ap2,joint (the default), linear, full, probes, probes-64, ...",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also compare calibrated AP2, with this file that Calibration.save wrote."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Calibrate AP2 with every other input, and check it on the rest.")
    ] = False,
    covariance: Annotated[
        bool, typer.Option("--covariance", help="Compare AP2 with correlations, and say why if it cannot run.")
    ] = False,
    probes: Annotated[
        int | None, typer.Option(min=2, metavar="K", help="Compare AP2 corrected by K probes, such as 16.")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="The number of Monte Carlo draws.")] = 1000,
    seed: Annotated[int, typer.Option(help="The seed of the draws.")] = 0,
    inputs: Annotated[int | None, typer.Option(min=1, help="Use only the first N inputs.")] = None,
    class_names: Annotated[str | None, typer.Option(metavar="NAMES", help="Class names, separated by commas.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as a web page.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all numbers as JSON.")] = None,
) -> None:
    """Measure the errors of AP1, AP2 and AP2 with correlations at every layer of a network, against Monte Carlo.

    Prints tables, and writes a report for the browser. MODULE may lie in the current folder. FACTORY is called without
    arguments and returns an `nn.Module`, which is put into evaluation mode.
    """
    model = _loaded(_made(factory), weights).eval()
    x = _inputs(data)[:inputs]
    _try(
        torch.no_grad()(lambda: model(x)),
        f"the network does not take an input of shape {tuple(x.shape)} and type {x.dtype}",
    )
    names = None if class_names is None else class_names.split(",")
    options: dict[str, Any] = {"samples": samples, "seed": seed, "class_names": names}
    options["methods"] = _methods(methods, covariance, probes)
    options["calibration"] = None if calibration is None else momentprop.Calibration.load(calibration)
    noise: dict[str, Any] = {"input_variance": variance, "input_std": std, "dropout": dropout}
    notes = []
    try:
        if calibrate:
            notes = [f"The calibration was fitted to {len(x[1::2])} other inputs than those of the check."]
            options["calibration"], x = _calibrated(model, x, calibration, seed=seed, **noise)
        report = momentprop.check(model, x, **noise, **options)
    except (TypeError, ValueError, momentprop.MissingRule) as error:
        raise UserError(str(error)) from error
    report = dataclasses.replace(report, call=_command(context), notes=[*report.notes, *notes])
    print(report)
    if json is not None:
        json.write_text(report.to_json(), encoding="utf-8")
    if html is not None:
        print(f"\nThe report is in {report.save_html(html)}: open it in a browser.")


def _methods(names: str | None, covariance: bool, probes: int | None) -> list[str] | None:
    """Return the methods to compare, None for the usual ones."""
    more = [JOINT] * covariance + ([f"{PROBES}-{probes}"] if probes is not None else [])
    if names is None:
        return ["ap1", "ap2", *more] if more else None
    return list(dict.fromkeys([*names.split(","), *more]))


def _calibrated(model: nn.Module, x: Tensor, file: Path | None, **noise: Any) -> tuple[momentprop.Calibration, Tensor]:
    """Return a calibration to every other input, and the rest of the inputs."""
    if file is not None:
        raise UserError("both `--calibration` and `--calibrate` were given: give only one of them")
    if len(x) < 2:
        raise UserError("`--calibrate` needs at least two inputs: one to fit to, and another one to check with")
    return momentprop.calibrate(model, x[1::2], **noise), x[::2]


def _command(context: typer.Context) -> str:
    """Return the command as the user gave it."""
    words = ["momentprop", "check"]
    for parameter in context.command.params:
        source, value = context.get_parameter_source(parameter.name or ""), context.params.get(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[:1] if parameter.param_type_name == "option" else []
            words += option if value is True else [*option, str(value)]
    return shlex.join(words)


def _made(factory: str) -> nn.Module:
    """Return the network that `MODULE:FACTORY` makes."""
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name):
        raise UserError(f"{factory!r} does not name a factory: write MODULE:FACTORY, such as nets:lenet")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = _try(lambda: importlib.import_module(module_name), f"cannot import {module_name!r}")
    finally:
        sys.path.remove(str(Path.cwd()))
    if not hasattr(module, name):
        raise UserError(f"the module {module_name!r} has no {name!r}: name a function in it that returns the network")
    made = _try(getattr(module, name), f"{factory}() failed")
    if not isinstance(made, nn.Module):
        raise UserError(f"{factory}() returns a {type(made).__name__}, but must return an nn.Module")
    return made


def _loaded(model: nn.Module, weights: Path | None) -> nn.Module:
    if weights is None:
        return model
    state = _read(weights, {".safetensors": _safetensors, ".pt": _torch, ".pth": _torch})
    _try(lambda: model.load_state_dict(state), f"{weights} does not fit the network")
    return model


def _inputs(path: Path) -> Tensor:
    x = _read(path, {".npy": _numpy, ".pt": _torch, ".pth": _torch})
    if not isinstance(x, Tensor) or not x.ndim:
        kind = f"a {type(x).__name__}" if not isinstance(x, Tensor) else "a single number"
        raise UserError(f"{path} must hold a tensor with the inputs along its first dimension, but holds {kind}")
    return x.float() if x.dtype == torch.float64 else x


def _read(path: Path, readers: dict[str, Callable[[Path], Any]]) -> Any:
    if path.suffix not in readers:
        raise UserError(f"cannot read {path}: the name of the file must end in {' or '.join(readers)}")
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    return _try(lambda: readers[path.suffix](path), f"cannot read {path}")


def _numpy(path: Path) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.load(path, allow_pickle=False))


def _safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def _torch(path: Path) -> Any:
    return torch.load(path, weights_only=True, map_location="cpu")


def _try(action: Callable[[], Any], failure: str) -> Any:
    """Run an action that may fail through the user's fault, and turn its error into one line."""
    try:
        return action()
    except ImportError as error:
        if error.name in ("numpy", "safetensors"):
            raise UserError(f'{failure}: run `pip install "momentprop[experiments]"`') from error
        raise UserError(f"{failure}: {_line(error)}") from error
    except Exception as error:
        raise UserError(f"{failure}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
