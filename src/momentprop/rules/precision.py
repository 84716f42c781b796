r"""The data types that a random value can have, and float16.

The elements of a value are real numbers in floating point: an integer or a complex tensor has no variance here.

A variance is a sum of products of squares. In float16, whose numbers range from $6\cdot 10^{-8}$ to 65504, the squares
overflow or vanish where the variance itself does not. So all products of a variance are taken in float32, even where
autocast asks for float16, and only the result is rounded. bfloat16 has the range of float32, so `variance_precision`
can ask for it: a variance is a sum without cancellation.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from momentprop.dispatch import Call, where
from momentprop.dispatch.call import each_in

Function = TypeVar("Function", bound=Callable[..., Any])


class _Asked(threading.local):
    """The type that this thread wants for the variances of linear layers."""

    dtype: torch.dtype | None = None


_ASKED = _Asked()


@contextlib.contextmanager
def variance_precision(dtype: torch.dtype | None) -> Iterator[None]:
    """Inside, multiply the variances of linear layers, convolutions and matrix products in bfloat16.

    Only the factors and results of these products are rounded; means and all other variances stay as they are. That
    changes a deviation by about 0.1 %, and is faster on machines with bfloat16 units: see `docs/stack.md`. It holds for
    the current thread. Compiled code keeps the precision it was compiled with. None restores full precision.

    >>> import torch, momentprop
    >>> layer = torch.nn.Linear(64, 64).requires_grad_(False)
    >>> x = momentprop.Normal(torch.zeros(64), 1.0)
    >>> y = layer(x)
    >>> with momentprop.variance_precision(torch.bfloat16):
    ...     rough = layer(x)
    >>> torch.equal(y.loc, rough.loc), bool((rough.variance / y.variance - 1).abs().max() < 0.01)
    (True, True)
    """
    if dtype not in (None, torch.bfloat16):
        raise ValueError(f"dtype must be `torch.bfloat16`, or None for full precision, but is {dtype}")
    before, _ASKED.dtype = _ASKED.dtype, dtype
    try:
        yield
    finally:
        _ASKED.dtype = before


def floating(call: Call, loc: Any) -> Any:
    """Return a result's mean; refuse one that is not in floating point."""
    if isinstance(loc, Tensor) and not loc.is_floating_point():
        _refuse(call.op, call.values[0], loc.dtype)
    return loc


def converted(op: str, value: Any, dtype: torch.dtype | None) -> Any:
    """Return a value in the type that an operation asks for, if any."""
    if dtype is None:
        return value
    if not dtype.is_floating_point:
        _refuse(op, value, dtype)
    return value.each(lambda part: part.to(dtype))


def _refuse(op: str, value: Any, dtype: torch.dtype) -> NoReturn:
    raise TypeError(
        f"{op!r} at {where()} would turn a random value into {dtype}, but a {type(value).__name__} holds real "
        "floating-point numbers only: convert a component instead, such as `value.loc`"
    )


def spread(call: Call, loc: Tensor, compute: Callable[[Call], Tensor], *, linear: bool = False) -> Tensor:
    """Return the variance of a result, which `compute` takes from the call, in the type of the given mean.

    `variance_precision` can change the precision of a `linear` function.
    """
    if linear and _ASKED.dtype is not None and loc.dtype is torch.float32:
        with torch.autocast(loc.device.type, _ASKED.dtype):
            return compute(call).to(loc.dtype)
    if loc.dtype is not torch.float16:
        variance = compute(call)
        return variance if variance.dtype is loc.dtype else variance.to(loc.dtype)
    with torch.autocast(loc.device.type, enabled=False):
        return compute(call.each(_wide)).to(loc.dtype)


def in_range(rule: Function) -> Function:
    """Make a rule that returns one value compute the variance in float32 where its result is in float16."""

    @functools.wraps(rule)
    def apply(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        if not result.dtype.is_floating_point:
            _refuse(rule.__name__, result, result.dtype)
        if result.dtype is not torch.float16:
            return result
        with torch.autocast(result.device.type, enabled=False):
            wide = rule(*(each_in(given, _wide) for given in args), **each_in(kwargs, _wide))
        return result.of(result.loc, wide.variance.to(torch.float16))

    return apply  # type: ignore[return-value]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype is torch.float16 else tensor
