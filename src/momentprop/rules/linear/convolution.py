r"""Convolutions, each of which is the transpose of a transposed one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Call, Operand
from momentprop.dispatch.registry import bilinear, transpose
from momentprop.rules.linear.sizes import per_dim
from momentprop.values import Normal

_CONV = "input weight bias stride padding dilation groups"
_TRANSPOSED = "input weight bias stride padding output_padding groups dilation"


def _register(dims: int) -> None:
    known: Any = {"factors": "input weight", "summands": ("bias",), "channels": (-1 - dims,)}
    bilinear(f"conv{dims}d", on=Normal, parameters=_CONV, **known)
    bilinear(f"conv_transpose{dims}d", on=Normal, parameters=_TRANSPOSED, **known)
    forward, backward = getattr(F, f"conv{dims}d"), getattr(F, f"conv_transpose{dims}d")

    @transpose(f"conv{dims}d")
    def conv_transposed(call: Call, gradient: Tensor) -> tuple[Tensor, ...]:
        """Give every element the worth of the outputs it enters, by a transposed convolution or a correlation."""
        input, weight = call.given("input"), call.given("weight")
        stride, dilation, groups = _steps(call, dims)
        begin = _padding(call, weight, dilation, dims)

        def to_input() -> Tensor:
            spread = backward(gradient, weight, None, stride, 0, 0, groups, dilation)
            return _fitted(spread, begin, input.shape[-dims:])

        def to_weight() -> Tensor:
            reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in
                     zip(gradient.shape[-dims:], stride, weight.shape[2:], dilation, strict=True)]  # fmt: skip
            seen = _fitted(input, [-first for first in begin], reach)
            return _correlated(seen, gradient, forward, dims, stride, dilation, groups)

        return _to_values(call, gradient, dims, to_input, to_weight)

    @transpose(f"conv_transpose{dims}d")
    def conv_transpose_transposed(call: Call, gradient: Tensor) -> tuple[Tensor, ...]:
        """Give every element the worth of the outputs it enters, by a convolution or a correlation."""
        input, weight = call.given("input"), call.given("weight")
        stride, dilation, groups = _steps(call, dims)
        padding = per_dim(call.given("padding", 0), dims)

        def to_input() -> Tensor:
            return forward(gradient, weight, None, stride, padding, dilation, groups)  # type: ignore[no-any-return]

        def to_weight() -> Tensor:
            reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in
                     zip(input.shape[-dims:], stride, weight.shape[2:], dilation, strict=True)]  # fmt: skip
            seen = _fitted(gradient, [-first for first in padding], reach)
            return _correlated(seen, input, forward, dims, stride, dilation, groups)

        return _to_values(call, gradient, dims, to_input, to_weight)


def windows(call: Call, input: Tensor, positions: Sequence[int]) -> Tensor:
    """Return the part of an input that a convolution of plain tensors sees at each position.

    The result has the shape (examples, groups, positions, elements of the kernel of one unit).
    """
    dims = len(positions)
    sides = call.given("weight").shape[2:]
    stride, dilation, groups = _steps(call, dims)
    begin = _padding(call, call.given("weight"), dilation, dims)
    widths = [(k - 1) * d + 1 for k, d in zip(sides, dilation, strict=True)]
    reach = [(o - 1) * s + width for o, s, width in zip(positions, stride, widths, strict=True)]
    seen = _fitted(input, [-first for first in begin], reach)
    for dim in range(dims):
        seen = seen.unfold(2 + dim, widths[dim], stride[dim])[..., :: dilation[dim]]
    of_groups: Tensor = seen.flatten(2, 1 + dims).unflatten(1, (groups, -1)).movedim(3, 2)
    return of_groups.flatten(3)


def _steps(call: Call, dims: int) -> tuple[list[int], list[int], int]:
    stride, dilation = (per_dim(call.given(name, 1), dims) for name in ("stride", "dilation"))
    return stride, dilation, call.given("groups", 1)


def _padding(call: Call, weight: Any, dilation: list[int], dims: int) -> list[int]:
    """Return how many elements a convolution adds at the start of each dimension."""
    padding = call.given("padding", 0)
    if padding == "same":
        return [(k - 1) * d // 2 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    return per_dim(0 if padding == "valid" else padding, dims)


def _fitted(x: Tensor, begin: list[int], sizes: Sequence[int]) -> Tensor:
    """Cut elements off the start of each of the last dimensions and bring it to a size; new elements are zero."""
    borders: list[int] = []
    for have, first, size in reversed(list(zip(x.shape[-len(begin) :], begin, sizes, strict=True))):
        borders += [-first, size + first - have]
    return F.pad(x, borders)


def _correlated(
    seen: Tensor, by: Tensor, forward: Any, dims: int, stride: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Return the worth of each tap of a kernel: sums over examples and positions, separately for each group.

    Examples take the place of channels: `seen` (N, G I, ...) becomes (I, G N, ...), and `by` (N, G O, ...) a kernel
    (G O, N, ...). The result has the shape (G O, I, ...) of a kernel.
    """
    if seen.ndim == dims + 1:  # without a batch
        seen, by = seen[None], by[None]
    seen = seen.unflatten(1, (groups, -1)).permute(2, 1, 0, *range(3, dims + 3)).flatten(1, 2)
    by = by.transpose(0, 1)
    return forward(seen, by, None, dilation, 0, stride, groups).transpose(0, 1)  # type: ignore[no-any-return]


def _to_values(
    call: Call, gradient: Tensor, dims: int, to_input: Callable[[], Tensor], to_weight: Callable[[], Tensor]
) -> tuple[Tensor, ...]:
    """Return the tensors for those of input, kernel and bias that are values, in the order of the call."""

    def to_bias() -> Tensor:
        return gradient.sum([dim for dim in range(gradient.ndim) if dim != gradient.ndim - 1 - dims])

    ways = {"input": to_input, "weight": to_weight, "bias": to_bias}
    found = {id(call.given(name)): way for name, way in ways.items() if isinstance(call.given(name), Operand)}
    return tuple(found[id(value)]() for value in call.values)


for _dims in (1, 2, 3):
    _register(_dims)
