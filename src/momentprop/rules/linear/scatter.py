r"""Operations that write a value, a plain tensor or a number at given places.

Places are plain. An overwritten element is gone; where several are added up, means and variances add.
"""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule
from momentprop.dispatch import where as place
from momentprop.dispatch.registry import linear, moves
from momentprop.values import Normal


def _writes(op: str, parameters: str, source: str, **facts: Any) -> None:
    """Register an operation that puts the elements of an argument over those of the input."""
    facts = {"positional": True, **facts}
    moves(op, on=Normal, parameters=parameters, summands=("input", source), **facts)


def _adds(op: str, parameters: str, source: str, **facts: Any) -> None:
    """Register an operation that adds the elements of an argument to those of the input."""
    linear(op, on=Normal, parameters=parameters, summands=("input", source), **facts)


_writes("masked_scatter", "input mask source", "source")
_writes("index_copy", "input dim index source", "source")
_writes("index_fill", "input dim index value", "value")
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


_writes("setitem", "input index value", "value", plain=_replaced)
_writes("copy", "input src", "src", plain=_copied, positional=False)


def _by_reduction(call: Call) -> Kind:
    reduce = call.given("reduce")
    if reduce not in (None, "add"):
        raise MissingRule(f"no rule for 'scatter' with `reduce={reduce!r}` at {place()}")
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


moves(
    "index_put", on=Normal, plain=torch.index_put, parameters="input indices values accumulate",
    summands=("input", "values"), positional=True, decide=_by_accumulation,
)  # fmt: skip
