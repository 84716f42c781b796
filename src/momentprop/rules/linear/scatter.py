r"""Operations that write elements at given places; what is written may be a value, a plain tensor or a number.

Places are plain. An element that is overwritten is gone; where several are added up, means and variances add.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import MissingRule, rule
from momentprop.dispatch import where as place
from momentprop.rules.linear.products import some_value
from momentprop.values import Normal
from momentprop.values.moments import is_random, mean_of, variance_of

Random = Any  # a value, a plain tensor or a number


def _register_write(op: str, source: str, parameters: Sequence[str]) -> None:
    """An operation `op(input, ...)` that puts the elements of the argument `source` over those of the input."""
    function: Callable[..., Tensor] = getattr(torch, op)
    position = parameters.index(source)

    def write(input: Random, *args: Any, **kwargs: Any) -> Normal:
        written = kwargs[source] if source in kwargs else args[position]

        def with_source(target: Tensor, source_part: Any) -> Tensor:
            if source in kwargs:
                return function(target, *args, **{**kwargs, source: source_part})
            return function(target, *args[:position], source_part, *args[position + 1 :], **kwargs)

        loc = with_source(mean_of(input), mean_of(written))
        variance = with_source(variance_of(input), variance_of(written))
        return some_value(input, written).of(loc, variance)

    _document(write, op, f"Elements of `{source}` written over those of the input.")


def _document(write: Callable[..., Normal], op: str, summary: str) -> None:
    write.__name__ = op
    write.__doc__ = f"{summary}\n\nError: exact for independent elements\nSource: definition"
    rule(op, on=Normal)(write)


_register_write("masked_scatter", "source", ("mask", "source"))
_register_write("index_copy", "source", ("dim", "index", "source"))
_register_write("index_fill", "value", ("dim", "index", "value"))
_register_write("slice_scatter", "src", ("src",))
_register_write("select_scatter", "src", ("src",))
_register_write("diagonal_scatter", "src", ("src",))


@rule("scatter", on=Normal)
def scatter(
    input: Random, dim: int, index: Tensor, src: Random = None, *, value: Any = None, reduce: str | None = None
) -> Normal:
    r"""Elements written at the places of `index`, or added there with `reduce="add"`.

    Error: exact for independent elements
    Source: definition
    """
    written = value if src is None else src
    if reduce == "add":
        return scatter_add(input, dim, index, written)
    if reduce is not None:
        raise MissingRule(f"no Normal rule for 'scatter' with `reduce={reduce!r}` at {place()}")
    return some_value(input, written).of(
        torch.scatter(mean_of(input), dim, index, mean_of(written)),
        torch.scatter(variance_of(input), dim, index, variance_of(written)),
    )


@rule("scatter_add", on=Normal)
def scatter_add(input: Random, dim: int, index: Tensor, src: Random) -> Normal:
    r"""Elements added at the places of `index`: means and variances add.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    return some_value(input, src).of(
        torch.scatter_add(mean_of(input), dim, index, mean_of(src)),
        torch.scatter_add(variance_of(input), dim, index, variance_of(src)),
    )


@rule("index_add", on=Normal)
def index_add(input: Random, dim: int, index: Tensor, source: Random, *, alpha: float = 1) -> Normal:
    r"""Slices added at the places of `index`: means and variances add.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    loc = torch.index_add(mean_of(input), dim, index, mean_of(source), alpha=alpha)
    variance = torch.index_add(variance_of(input), dim, index, variance_of(source), alpha=alpha * alpha)
    return some_value(input, source).of(loc, variance)


@rule("index_put", on=Normal)
def index_put(input: Random, indices: tuple[Tensor | None, ...], values: Random, accumulate: bool = False) -> Normal:
    r"""Elements written or, with `accumulate`, added at indices: then means and variances add.

    Error: exact for independent elements
    Source: definition; paper, eq. linear
    """
    return some_value(input, values).of(
        torch.index_put(mean_of(input), indices, mean_of(values), accumulate),
        torch.index_put(variance_of(input), indices, variance_of(values), accumulate),
    )


@rule("copy", on=Normal)
def copy(input: Random, src: Random, non_blocking: bool = False) -> Normal:
    r"""The elements of `src`, in the shape and type of the input.

    Error: exact
    Source: definition
    """
    parts = (mean_of(src), variance_of(src) if is_random(src) else torch.zeros_like(src))
    return input.of(*(part.to(input.device, input.dtype).expand_as(input.loc).clone() for part in parts))  # type: ignore[no-any-return]
