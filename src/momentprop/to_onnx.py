"""Writes a model as an ONNX program whose inputs and outputs are the components of values, by name."""

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.as_tensors import AsTensors, components_of
from momentprop.propagate import propagate
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.lifted import Lifted
from momentprop.torch_compat.tracing import traced
from momentprop.values import Joint, Normal, Value
from momentprop.values.conversion import is_value

INPUTS = ("input", "input_variance")
"""The names of the inputs of a program."""

_LACKING = {
    "convolution_backward": "a transposed convolution or a convolution with random weights",
    "avg_pool2d_backward": "average pooling with padding",
}
"""Backward passes that ONNX has no operations for, and the operations they belong to."""


def to_onnx(
    model: nn.Module, x: Normal | Tensor, file: str | Path | None = None, *, covariance: bool = False, **options: Any
) -> Any:
    r"""Return a model as an ONNX program that gives `loc` and `variance`, and `covariance` if asked for.

    Its inputs are `input` and `input_variance`. A model with several outputs has names such as `logits.loc`. It needs
    the packages onnx and onnxscript.

        program = momentprop.to_onnx(model, Normal(images, 0.1), "model.onnx")

    Args:
        model: a module in evaluation mode, or one from `momentprop.calibrated`.
        x: an example of the input: a value, or a plain tensor for a model that knows its own noise. Its numbers do not
            matter. The program takes any number of inputs; with a covariance only if the example has several.
        file: where to write the program.
        covariance: also follow correlations, and give the covariance of the units of every input. ONNX must have an
            operation for the transpose of every operation in the model; otherwise the error names one. Inputs must not
            influence each other. Recording a program for one input is quickest.
        **options: for `torch.onnx.export`.
    """
    _require_packages()
    if isinstance(x, Value) and type(x) is not Normal:
        kind: type[Value] = type(x)
        inside = ": let the model make correlated noise from independent noise" if issubclass(kind, Joint) else ""
        raise TypeError(f"the example must be a Normal or a tensor, not a {kind.__name__}{inside}")
    if covariance and not isinstance(x, Normal):
        raise TypeError("a covariance needs the noise of the input: give `Normal(x, variance)` as the example")
    parts = (x.loc, x.variance) if isinstance(x, Normal) else (x,)
    given = tuple(part.detach().clone() for part in parts)
    run: Any = functools.partial(_jointly, model) if covariance else AsTensors(model)
    with torch.no_grad():
        outputs = propagate(model, x, covariance=True) if covariance else run.values(*given)
    how: dict[str, Any] = {"input_names": INPUTS[: len(given)], "output_names": list(_names(outputs))}
    program_of: Any = _recorded(run, tuple(part[:1] for part in given)) if covariance else run
    if not covariance:
        how["dynamic_shapes"] = {name: {0: "batch"} for name in ("loc", "variance")[: len(given)]}
    elif len(given[0]) > 1:
        program_of = Lifted(program_of)
        how["dynamic_shapes"] = {"inputs": tuple({0: "batch"} for _ in given)}
    with torch.no_grad(), _quiet_exporters():
        program = torch.onnx.export(
            program_of,
            given,
            dynamo=True,
            **{"verbose": False, **how, **options},
        )
    if file is not None:
        program.save(str(file))  # type: ignore[union-attr]
    return program


@contextlib.contextmanager
def _quiet_exporters() -> Iterator[None]:
    """Silence the exporters' warnings about their own functions, and about packages that nobody needs here."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _recorded(run: Callable[..., Any], given: tuple[Tensor, ...]) -> nn.Module:
    """Record the operations of a pass with its backward passes, or say which of them ONNX lacks."""
    module = traced(run, given)
    used = {str(getattr(node.target, "__name__", "")).partition(".")[0] for node in module.graph.nodes}
    for name, reason in _LACKING.items():
        if name in used:
            raise NotImplementedError(f"ONNX cannot express the covariance of {reason}: leave out `covariance=True`")
    return module


def _jointly(model: nn.Module, loc: Tensor, variance: Tensor) -> Any:
    """Run a model, follow correlations, and return mean, variance and covariance of every `Joint`."""
    result = propagate(model, Normal.of(loc, variance), covariance=True)
    return pytree.tree_map(_with_covariance, result, is_leaf=is_value)


def _with_covariance(part: Any) -> Any:
    return (part.loc, part.variance, part.covariance) if isinstance(part, Joint) else components_of(part)


def _names(output: Any, path: str = "") -> Iterator[str]:
    """Return the names of the component tensors of an output, in the order of pytrees."""
    if isinstance(output, Value):
        names = ("loc", "variance", "covariance") if isinstance(output, Joint) else output.components
        yield from (f"{path}{name}" for name in names)
    elif isinstance(output, Mapping):
        for key, part in output.items():
            yield from _names(part, f"{path}{key}.")
    elif isinstance(output, list | tuple):
        for index, part in enumerate(output):
            yield from _names(part, f"{path}{index}.")
    elif isinstance(output, Tensor):
        yield path.rstrip(".") or "output"


def _require_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("ONNX programs need onnx and onnxscript: run `pip install onnx onnxscript`") from error
