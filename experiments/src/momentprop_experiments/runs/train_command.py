"""`momentprop train`: train one of the paper's networks."""

import dataclasses
import inspect
import os
import shlex
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import train as run

_EPILOG = """\b
Examples:
  momentprop train lenet                              the embedded digits, by AP2, in about a minute
  momentprop train lenet --dropout 0.2                analytic dropout: AP2 propagates it without draws
  momentprop train lenet --method sample --dropout 0.2 --evaluate ap1
                                                      standard dropout, evaluated as a standard network
  momentprop train lenet --activation bernoulli --family fitted --learning-rate 0.003 --decay 1
                                                      random binary units, without a gradient estimator
  momentprop train lenet --data mnist --out runs/mnist
                                                      full MNIST, after `momentprop data get mnist`
  momentprop train lenet --data mnist --out runs/mnist --resume
                                                      resume a killed run; the result is the same
  torchrun --nproc-per-node 2 -m momentprop train cifar --data cifar10 --init bn
                                                      two processes share each batch

\b
The run writes config.json, log.csv (one line per epoch), checkpoint.safetensors, and at the end
model.safetensors, result.json, curves.png and curves.svg.
"""


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command("train", epilog=_EPILOG)(_with_options(train))


def train(
    network: str, out: Path | None, root: Path | None, resume: bool, overwrite: bool, tensorboard: bool, **fields: Any
) -> int:
    """Train one of the paper's networks (mlp, lenet, cifar), or deep-mlp, plain20, resnet18 or vit.

    The loss is -log q(y), where q is the class posterior by the method of the training pass.
    """
    config = Config(network=network, **fields)
    place = out or Path("runs") / "-".join([network, config.data, config.method, config.activation])
    if os.environ.get("RANK", "0") == "0":
        print(_echo(config, place), flush=True)
    try:
        result = run(config, place, root=root, resume=resume, overwrite=overwrite, tensorboard=tensorboard)
    except KeyboardInterrupt:
        again = [argument for argument in sys.argv[1:] if argument not in ("--resume", "--overwrite")]
        command = shlex.join(["momentprop", *again, "--resume"])
        print(f"\nmomentprop: stopped; `{command}` resumes from the last checkpoint", file=sys.stderr)
        return 130
    if os.environ.get("RANK", "0") == "0":
        print(f"Written to {result.out}: test accuracy {result.test['accuracy']:.2%}")
    return 0


def _echo(config: Config, place: Path) -> str:
    """Return the configuration, five settings per line."""
    settings = [f"{name.replace('_', '-')} {value}" for name, value in config.as_dict().items()]
    rows = [settings[i : i + 5] for i in range(0, len(settings), 5)]
    return "\n".join([f"Training into {place}:", *("  " + ", ".join(row) for row in rows)])


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each field of the configuration, with its help text and default."""
    kinds = typing.get_type_hints(Config)
    options = [
        _parameter(field.name, kinds[field.name], field.default, typer.Option(help=field.metadata["help"]))
        for field in dataclasses.fields(Config)
        if field.name != "network"
    ]
    parameters = [
        _parameter(
            "network",
            str,
            inspect.Parameter.empty,
            typer.Argument(metavar="NETWORK", help="mlp, deep-mlp, lenet, cifar, plain20, resnet18 or vit."),
        ),
        *sorted(options, key=lambda option: list(_FIRST).index(option.name) if option.name in _FIRST else len(_FIRST)),
        _parameter(
            "out",
            Path | None,
            None,
            typer.Option(metavar="DIR", help="The folder of the run; by default one in `runs`."),
        ),
        _parameter("root", Path | None, None, typer.Option(metavar="DIR", help="The folder of the data sets.")),
        _parameter("resume", bool, False, typer.Option("--resume", help="Resume from the checkpoint in the folder.")),
        _parameter(
            "overwrite", bool, False, typer.Option("--overwrite", help="Start again in a folder that holds a run.")
        ),
        _parameter("tensorboard", bool, False, typer.Option("--tensorboard", help="Also write TensorBoard events.")),
    ]

    def with_options(**given: Any) -> int:
        return command(**given)  # type: ignore[no-any-return]

    with_options.__doc__ = command.__doc__
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


_FIRST = ("data", "method", "evaluate", "activation", "dropout", "norm", "init", "epochs", "learning_rate")


def _parameter(name: str, kind: Any, default: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
