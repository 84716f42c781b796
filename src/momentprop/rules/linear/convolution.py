r"""Convolutions, each of which is the transpose of a transposed one."""

from typing import Any

import torch
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
    def conv_transposed(call: Call, gradient: Tensor) -> Any:
        """Give every input element what the outputs that it enters are worth, by a transposed convolution."""
        weight = call.given("weight")
        if isinstance(weight, Operand):
            return _by_derivative(call, gradient)
        input = call.given("input")
        stride, dilation = (per_dim(call.given(name, 1), dims) for name in ("stride", "dilation"))
        begin = _padding(call, weight, dilation, dims)
        sizes = input.shape[-dims:]
        reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
        whole = [(o - 1) * s + r for o, s, r in zip(gradient.shape[-dims:], stride, reach, strict=True)]
        spread = backward(gradient, weight, None, stride, 0, 0, call.given("groups", 1), dilation)
        # cut the padding off, and add the elements that no window reached
        borders: list[int] = []
        for size, total, first in reversed(list(zip(sizes, whole, begin, strict=True))):
            borders += [-first, size + first - total]
        return F.pad(spread, borders)

    @transpose(f"conv_transpose{dims}d")
    def conv_transpose_transposed(call: Call, gradient: Tensor) -> Any:
        """Give every input element what the outputs that it enters are worth, by a convolution."""
        weight = call.given("weight")
        if isinstance(weight, Operand):
            return _by_derivative(call, gradient)
        names = (("stride", 1), ("padding", 0), ("dilation", 1))
        stride, padding, dilation = (per_dim(call.given(name, default), dims) for name, default in names)
        return forward(gradient, weight, None, stride, padding, dilation, call.given("groups", 1))


def _padding(call: Call, weight: Tensor, dilation: list[int], dims: int) -> list[int]:
    """Return how many elements a convolution adds at the beginning of each dimension."""
    padding = call.given("padding", 0)
    if padding == "same":
        return [(k - 1) * d // 2 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    return per_dim(0 if padding == "valid" else padding, dims)


def _by_derivative(call: Call, gradient: Tensor) -> Any:
    """Apply torch's derivative, for a random kernel."""
    pull: Any = torch.func.vjp(call.on, *(torch.zeros_like(value.loc) for value in call.values))[1]
    return pull(gradient)


for _dims in (1, 2, 3):
    _register(_dims)
