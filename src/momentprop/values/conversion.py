"""Conversion of values and tensors to values of another type."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch.context import seen
from momentprop.values.base import Value
from momentprop.values.categorical import Categorical
from momentprop.values.certain import Certain, Sample
from momentprop.values.independent import Independent
from momentprop.values.joint import Joint
from momentprop.values.structures import mapped
from momentprop.values.uncertain import Uncertain


def as_type(x: Any, wanted: type[Value]) -> Any:
    """Convert a value or a tensor to the wanted type: take its mean, its moments, or a draw of it."""
    if type(x) is wanted:
        return x
    if not isinstance(x, Value):
        return wanted.certain(x)
    if issubclass(wanted, Sample):
        return wanted.of(x.sample())
    if issubclass(wanted, Certain):
        return wanted.of(x.loc)  # type: ignore[attr-defined]
    if issubclass(wanted, Independent) and isinstance(x, Certain):
        return wanted.certain(x.loc)
    if issubclass(wanted, Independent) and isinstance(x, Uncertain | Categorical):
        return wanted.of(x.loc, x.variance)
    if issubclass(wanted, Joint) and isinstance(x, Certain | Uncertain):
        return wanted.certain(x.loc) if isinstance(x, Certain) else wanted.taken_in(x)
    raise TypeError(
        f"a {type(x).__name__} cannot be converted to a {wanted.__name__} without a loss: give a {wanted.__name__}, or "
        "leave out `method` and `family`"
    )


def copied(x: Any) -> Any:
    """Return a copy of a tensor or a value, and anything else itself."""
    if isinstance(x, Value):
        return x.each(torch.clone)
    return x.clone() if isinstance(x, Tensor) else x


def as_values(tree: Any, wanted: type[Value], seen: Callable[[Any], Any] = seen) -> Any:
    """Replace the floating-point tensors of a structure by values of a type, if that type can be certain.

    `seen` returns the value that a plain tensor has become in a pass, by default the current one.
    """
    if wanted.certain.__func__ is Value.certain.__func__:  # type: ignore[attr-defined]
        return tree

    def converted(x: Any) -> Any:
        x = seen(x)
        return wanted.certain(x) if is_floating(x) else x

    return mapped(converted, tree)


def is_value(x: Any) -> bool:
    """Return whether something is a value."""
    return isinstance(x, Value)


def is_floating(x: Any) -> bool:
    """Return whether something is a floating-point tensor."""
    return isinstance(x, Tensor) and x.is_floating_point()
