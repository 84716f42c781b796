"""Tells whether two different kernel objects compute the same."""

import functools
import types
from collections.abc import Hashable
from typing import Any

import torch

_KINDS = {float, str, type(None)}  # types whose equal objects are interchangeable
_NUMBERS = (bool, int, float, str, bytes, type(None), torch.dtype)


class Unidentified(Exception):  # noqa: N818 (an outcome, not an error of the caller)
    """A kernel holds something that could change unnoticed, such as a tensor."""


def identity_of(x: Any) -> Hashable:
    """Return a key that is equal for functions of the same code that hold the same numbers and functions.

    Kernels are often created for every call, by `partial` or inside another function.
    """
    kind = type(x)
    if kind in _NUMBERS:
        return kind, x
    if kind is types.FunctionType:
        if x.__closure__ is None and x.__name__ != "<lambda>":
            return x  # type: ignore[no-any-return]
        cells = () if x.__closure__ is None else tuple(identity_of(cell.cell_contents) for cell in x.__closure__)
        named = tuple((x.__kwdefaults__ or {}).items())
        return x.__code__, cells, identity_of(x.__defaults__), identity_of(named)
    if kind is functools.partial:
        if not x.args and _KINDS.issuperset(map(type, x.keywords.values())):
            return functools.partial, identity_of(x.func), *x.keywords.items()
        named = tuple((name, identity_of(value)) for name, value in x.keywords.items())
        return functools.partial, identity_of(x.func), identity_of(x.args), named
    if kind is types.BuiltinFunctionType and not isinstance(x.__self__, torch.Tensor):
        return x  # type: ignore[no-any-return]
    if kind in (tuple, list) or hasattr(x, "_fields"):
        return kind, tuple(identity_of(item) for item in x)
    raise Unidentified(kind.__name__)
