r"""Operations that write a value, a plain tensor or a number at given places.

Places are plain. An overwritten element is gone; where elements are added up, means and variances add.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, Operand
from momentprop.dispatch import where as place
from momentprop.dispatch.places import put_back, repeats
from momentprop.dispatch.registry import linear, moves, transpose
from momentprop.values import Normal


def _writes(op: str, parameters: str, source: str, **facts: Any) -> None:
    """Register an operation that writes an argument's elements over the input's."""
    facts = {"positional": True, **facts}
    moves(op, on=Normal, parameters=parameters, summands=("input", source), **facts)


def _adds(op: str, parameters: str, source: str, **facts: Any) -> None:
    """Register an operation that adds an argument's elements to the input's."""
    linear(op, on=Normal, parameters=parameters, summands=("input", source), **facts)


_writes("masked_scatter", "input mask source", "source")
_writes("index_copy", "input dim index source", "source")
_writes("index_fill", "input dim index value", "value", copies=repeats)
_writes("slice_scatter", "input src", "src")
_writes("select_scatter", "input src", "src")
_writes("diagonal_scatter", "input src", "src")
_adds("scatter_add", "input dim index src", "src")
_adds("index_add", "input dim index source", "source", numbers=("alpha",))


def _replaced(input: Tensor, index: Any, value: Any) -> Tensor:
    result = input.clone()
    result[index] = value
    return result


def _copied(input: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.to(input.device, input.dtype).expand_as(input).clone()


def _filled(input: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(input.device, input.dtype).expand_as(input).clone()
    return torch.full_like(input, value)


_writes("setitem", "input index value", "value", plain=_replaced, copies=repeats)
_writes("copy", "input src", "src", plain=_copied, positional=False, copies=repeats)


moves("fill", on=Normal, plain=_filled, parameters="input value", summands=("value",), copies=repeats)
moves("zero", on=Normal, plain=torch.zeros_like)


def _by_reduction(call: Call) -> Kind:
    reduce = call.given("reduce")
    if reduce not in (None, "add"):
        raise MissingRule(
            f"no rule for 'scatter' with `reduce={reduce!r}` at {place()}: choose 'add', or use method='sample'"
        )
    return Kind.MOVES if reduce is None else Kind.LINEAR


def _scattered(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    written = value if src is None else src
    if reduce is None:
        return torch.scatter(input, dim, index, written)
    if not isinstance(written, Tensor):
        written = torch.full(index.shape, written, dtype=input.dtype, device=input.device)
    return torch.scatter_add(input, dim, index, written)


moves(
    "scatter", on=Normal, plain=_scattered, parameters="input dim index src", summands=("input", "src", "value"),
    positional=True, decide=_by_reduction,
)  # fmt: skip


def _by_accumulation(call: Call) -> Kind:
    return Kind.LINEAR if call.given("accumulate", False) else Kind.MOVES


def _by_accumulated_squares(call: Call, *variances: Tensor) -> Tensor:
    """Add up the variances; an element added to a place $n$ times counts $n^2$ times."""
    call = call.operation.homogeneous(call)
    input, values, indices = call.given("input"), call.given("values"), tuple(call.given("indices"))
    places = torch.arange(input.numel(), device=input.device).reshape(input.shape)[indices]
    if not isinstance(values, Operand) or variances[-1].shape == places.shape:
        return call.on(*variances)  # type: ignore[no-any-return]
    spread = variances[-1]
    elements = torch.arange(spread.numel(), device=input.device).reshape(spread.shape).expand(places.shape)
    pairs, counts = (places * spread.numel() + elements).unique(return_counts=True)
    added = spread.flatten()[pairs % spread.numel()] * counts.to(spread.dtype).square()
    total = variances[0] if isinstance(input, Operand) else torch.zeros_like(input)
    return total.flatten().index_add(0, pairs // spread.numel(), added).reshape(input.shape)


moves(
    "index_put", on=Normal, plain=torch.index_put, parameters="input indices values accumulate",
    summands=("input", "values"), positional=True, copies=repeats, decide=_by_accumulation,
    by_squares=_by_accumulated_squares,
)  # fmt: skip


@transpose("scatter", "scatter_add")
def scatter_add_transposed(call: Call, gradient: Tensor) -> tuple[Tensor, ...]:
    """Read what was added or written from its places."""
    if call.kind is Kind.MOVES:
        return put_back(call, gradient)
    return tuple(_taken(call, name, gradient) for name in ("input", "src") if isinstance(call.given(name), Operand))


def _taken(call: Call, name: str, gradient: Tensor) -> Tensor:
    if name == "input":
        return gradient
    dim, index, shape = call.given("dim"), call.given("index"), call.given("src").shape
    borders = [
        end for size, have in zip(reversed(shape), reversed(index.shape), strict=True) for end in (0, size - have)
    ]
    return F.pad(gradient.gather(dim, index), borders)  # elements beyond the index were not added
