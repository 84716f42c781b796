"""The call `momentprop.check`."""

import dataclasses
import functools
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.checking import accuracy, cost, culprit, ranks, shown_inputs, wide_outputs
from momentprop.checking.final_output import Classes
from momentprop.checking.measure import Measurement, measure
from momentprop.checking.methods import PLAIN_AP2, Compared, Method, functions
from momentprop.checking.picked_units import name_of_output
from momentprop.checking.report import Report
from momentprop.checking.results import Cost, Culprit, ModuleAccuracy
from momentprop.given import refuse_unknown, require_calibration, require_model, with_covariance, with_values
from momentprop.nothing_random import nothing_may_be_random
from momentprop.running import Run, may_vectorize
from momentprop.undoing import leaves_no_trace
from momentprop.values import Value
from momentprop.values.conversion import is_value
from momentprop.values.given_noise import the_variance
from momentprop.values.structures import mapped
from momentprop.weights import with_means

UNITS = 2**13
"""The default number of units to measure of every output."""

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
"""The modules that do nothing unless dropout acts."""


@leaves_no_trace
@torch.no_grad()
@nothing_may_be_random()  # then an error says so
def check(
    model: Callable[..., Any],
    *args: Any,
    input_variance: Tensor | float | None = None,
    input_std: Tensor | float | None = None,
    input_covariance: Tensor | None = None,
    methods: Sequence[Method] | None = None,
    dropout: bool = False,
    samples: int = 1000,
    seed: int = 0,
    units: int | None = UNITS,
    classes: Classes = "auto",
    class_names: Sequence[str] | None = None,
    show: Sequence[int] = (0, 1, 2),
    calibration: Any = None,
    fallback: Any = None,
    **kwargs: Any,
) -> Report:
    r"""Compare methods with Monte Carlo at every module of a model, and report how accurate they are.

    >>> import torch, momentprop
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> report = momentprop.check(model, torch.randn(5, 8), input_variance=0.1)
    >>> ap1, ap2 = (report["output"].methods[name] for name in ("ap1", "ap2"))
    >>> ap2.eps_mean < 0.1 < ap1.eps_mean
    True
    >>> 0.8 < ap2.eps_std < 1.2
    True

    Args:
        model: any module, or a function; of a function only the output is compared. Batch normalization must be in
            evaluation mode, because a thousand draws would change its statistics.
        *args: arguments of the model: a batch of inputs, tensors or values.
        input_variance: the variance of the first floating-point argument, as in `propagate`.
        input_std: the standard deviation instead.
        input_covariance: the covariance of the flattened features of an item instead, as in `propagate`.
        methods: the methods to compare with draws, by default `("ap1", "ap2", "joint")`. Others are `"linear"`, the
            delta method; `"full"`, for small networks; `"probes"`, with 16 of them, and `"probes-64"`; `"ap2-logistic"`
            and `"ap2-fitted"`; a name with options of `propagate` such as `("quadrature", {"fallback": "quadrature"})`;
            or a name with a function that takes and returns what `propagate` does. `"ap2"` treats units as independent,
            and `"joint"` is AP2 with the covariance of the output; it is left out if an input has more than 128 output
            units.
        dropout: let dropout act in evaluation mode, as in `propagate`.
        samples: the number of draws. It limits what the check can resolve: see the floors in the report.
        seed: the seed of the draws.
        units: the largest number of units to measure of each output, picked at random; None measures all. The class
            posterior is always measured in full.
        classes: the dimension of the classes of the output, or None if the output is not logits. By default, outputs
            called `logits` and outputs with two dimensions count as logits.
        class_names: the names of the classes, or of the output units, for the report.
        show: the inputs for which the report shows output units and class probabilities.
        calibration: a calibration, to compare `"ap2-calibrated"` too, and `"joint-calibrated"` beside `"joint"`.
        fallback: as in `propagate`.
        **kwargs: keyword arguments of the model.

    Units that are infinite in every draw and every method, such as masked logits, count as units that do not vary.

    If `torch.distributed` is initialized, each rank takes a part of the inputs (of every tensor with as many rows as
    the first), and every rank gets the whole report.
    """
    if samples < 2:
        raise ValueError(f"a variance takes at least 2 samples, but samples is {samples}")
    if not may_vectorize(model):
        raise ValueError("draws would change the running statistics of batch normalization: call `model.eval()` first")
    if units is not None and units < 1:
        raise ValueError(f"units must be at least 1, or None to measure all of them, but is {units}")
    require_model(model)
    require_calibration(calibration)
    refuse_unknown(model, kwargs, check)
    args, kwargs = with_values(args, kwargs)  # type: ignore[assignment]
    said = {"input_variance": input_variance, "input_std": input_std, "input_covariance": input_covariance}
    said |= {"dropout": dropout, "fallback": fallback}
    said = {name: value for name, value in said.items() if value is not None and value is not False}
    input_variance = the_variance(input_variance, input_std)
    if input_covariance is not None:
        args, kwargs = with_covariance(args, kwargs, input_variance, input_covariance, 0)  # type: ignore[assignment]
    started = time.perf_counter()
    named = functions(methods, calibration)
    noise = {"input_variance": input_variance, "dropout": dropout, "fallback": fallback}
    run = Run(model, args, kwargs, seed=seed, **noise)
    if run.batch_size == 0:
        raise ValueError("the batch is empty: a check needs at least one input")
    mine, shown, start = ranks.share(run, show)
    chosen = wide_outputs.chosen(mine, named)
    found = ranks.gathered(measure(mine, chosen.methods, samples, units, classes, shown), start)
    compared = {name: chosen.methods[name] for name in found.methods}
    modules = _modules(found, run, samples)
    report = Report(
        call=_described(run, said, found.methods, samples),
        versions=_versions(),
        model=_model_name(model),
        samples=samples,
        inputs=run.batch_size,
        seed=seed,
        methods=found.methods,
        output=found.end,
        modules=modules,
        posterior=accuracy.of_posterior(found.probabilities, samples) if found.probabilities is not None else None,
        examples=shown_inputs.of(found, run, class_names),
        cost=_cost(mine, compared, chosen.units),
        seconds=time.perf_counter() - started,
        notes=chosen.notes + found.notes,
        given=_given(run, said),
    )
    guilty, failure = ranks.of_first(_culprit(mine, report))
    seconds = time.perf_counter() - started
    return dataclasses.replace(report, culprit=guilty, notes=[*report.notes, *failure], seconds=seconds)


def _culprit(run: Run, report: Report) -> tuple[Culprit | None, list[str]]:
    """The operation at which AP2 goes wrong, if any, or a note on why it could not be found."""
    if report.chief not in PLAIN_AP2 or report.first_off(report.chief, culprit.OFF) is None:
        return None, []
    try:
        return culprit.culprit(run, report.samples), []
    except Exception as error:  # the figures of the report do not depend on it
        return None, [f"the operation at fault was not found: {type(error).__name__}: {error}".splitlines()[0]]


def _modules(found: Measurement, run: Run, samples: int) -> dict[str, ModuleAccuracy]:
    types, idle = _types(run), _idle(run)
    modules: dict[str, ModuleAccuracy] = {}
    for name, measured in found.modules.items():
        same = next((other for other in modules if accuracy.same_units(found.modules[other], measured)), None)
        path = measured.path
        kind = types[path if path in types else path.rpartition("#")[0]]  # `path#2` for a second call
        acts = path not in idle
        modules[name] = dataclasses.replace(accuracy.of_module(measured, samples, kind, same), acts=acts)
    if found.correlations is not None:
        modules[found.end] = accuracy.with_correlations(modules[found.end], found.correlations, samples)
    if all(module.zero == module.units for module in modules.values()):
        raise ValueError(
            "nothing in the model is random: give an `input_variance`, or turn on its dropout (`dropout=True`)"
        )
    return modules


def _types(run: Run) -> dict[str, str]:
    """The class of the module at every path."""
    if not isinstance(run.model, nn.Module):
        return {name_of_output(run.model): "function"}
    types = {path: type(module).__name__ for path, module in run.model.named_modules(remove_duplicate=False)}
    return {**types, name_of_output(run.model): type(run.model).__name__}


def _idle(run: Run) -> set[str]:
    """The paths of modules that pass on their input: dropout that is switched off."""
    named = run.model.named_modules(remove_duplicate=False) if isinstance(run.model, nn.Module) else ()
    return {
        path
        for path, module in named
        if isinstance(module, nn.Identity)
        or ((isinstance(module, DROPOUTS) and not (run.dropout or module.training)) or getattr(module, "p", 1) == 0)
    }


def _cost(run: Run, methods: Mapping[str, Compared], units: int) -> dict[str, Cost]:
    run = run.apart()
    runs = {name: functools.partial(run.under, method) for name, method in methods.items()}
    measured = cost.measured(_plain(run).plain, runs)
    return {name: Cost(measured[name], method.cost(units)) for name, method in methods.items()}


def _plain(run: Run) -> Run:
    """Return the run of the plain network, on tensors: values among arguments and weights become their means."""
    args, kwargs = mapped(lambda x: x.loc if is_value(x) else x, (tuple(run.args), dict(run.kwargs)))
    model = with_means(run.model) if run.has_random_weights else run.model
    return dataclasses.replace(run, model=model, args=args, kwargs=kwargs)


def _described(run: Run, said: Mapping[str, Any], methods: Sequence[str], samples: int) -> str:
    """The call as source code, with shapes in place of tensors; `said` is the noise as the user gave it."""
    given = [_model_name(run.model), *map(_brief, run.args)]
    named = {**run.kwargs, **said, "methods": tuple(methods), "samples": samples, "seed": run.seed}
    return f"momentprop.check({', '.join([*given, *(f'{name}={_brief(value)}' for name, value in named.items())])})"


def _given(run: Run, said: Mapping[str, Any]) -> str:
    """The arguments of `propagate` as source code."""
    args = ["x"] if len(run.args) == 1 else ["*args"] if run.args else []
    kwargs = ["**kwargs"] if run.kwargs else []
    noise = [
        f"{name}={value!r}" if isinstance(value, bool | int | float | str) else f"{name}={name}"
        for name, value in said.items()
    ]
    return ", ".join(["model", *args, *kwargs, *noise])


def _brief(x: Any) -> str:
    if isinstance(x, Tensor | Value):
        return f"{type(x).__name__}{tuple(x.shape)}"
    text = repr(x)
    return text if len(text) <= 60 else f"{type(x).__name__}(...)"


def _model_name(model: Any) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", type(model).__name__)


def _versions() -> dict[str, str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    try:
        version = metadata.version("momentprop")
    except metadata.PackageNotFoundError:
        version = "not installed"
    return {
        "momentprop": version,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "machine": f"{platform.system()}, {device}, {torch.get_num_threads()} threads",
    }
