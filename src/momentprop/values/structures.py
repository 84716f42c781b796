"""What models return: tensors and values inside tuples, dictionaries, dataclasses and other objects, to any depth.

A structure is opened wherever it can hold a tensor: lists, tuples and named tuples, dictionaries and their subclasses,
nodes that are registered with torch's pytrees, and every other object through its attributes, such as dataclasses and
Hugging Face caches. If a part is replaced, everything around it is copied, and never rebuilt by its constructor: that
of a Hugging Face output iterates over its field if there is only one.
"""

import copy
import enum
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.torch_compat import pytrees as pytree
from momentprop.values.base import Value

CLOSED = (
    *(str, bytes, int, float, complex, enum.Enum, torch.dtype, torch.device, torch.Size, torch.Generator),
    *(nn.Module, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
)
"""Types that hold no tensor, and types of code."""


def leaves_of(structure: Any) -> list[Any]:
    """Return the tensors and values of a structure in a fixed order, each once."""
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    mapped(note, structure)
    return found


def mapped(function: Callable[[Any], Any], structure: Any) -> Any:
    """Return a structure with the function applied once to each of its tensors and values.

    >>> mapped(lambda x: x * 2, {"a": (torch.ones(1), 3)})
    {'a': (tensor([2.]), 3)}

    The structure itself stays as it is. Parts in which nothing is replaced are not copied.
    """
    if isinstance(structure, Tensor | Value):
        return function(structure)
    return _Copy(function).of(structure)


class _Copy:
    """A copy of a structure in the making; an object that occurs twice, or holds itself, is copied once."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.made: dict[int, tuple[Any, Any]] = {}  # an object, kept alive for its id, and its copy
        self.met: set[int] = set()  # the objects that occurred again

    def of(self, part: Any) -> Any:
        if part is None or isinstance(part, CLOSED):
            return part
        if id(part) in self.made:
            self.met.add(id(part))
            return self.made[id(part)][1]
        copied = self.function(part) if isinstance(part, Tensor | Value) else self.opened(part)
        self.made[id(part)] = (part, copied)
        return copied

    def opened(self, part: Any) -> Any:
        inside, empty, fill = _taken_apart(part)
        if empty is not None:
            self.made[id(part)] = (part, empty)  # what is inside may hold the object itself
        copied = [self.of(each) for each in inside]
        if empty is None and id(part) in self.made:
            return self.made[id(part)][1]
        if id(part) in self.met or any(new is not old for new, old in zip(copied, inside, strict=True)):
            return fill(copied)
        return part


def _taken_apart(part: Any) -> tuple[list[Any], Any, Callable[[list[Any]], Any]]:
    """Return what is inside an object, a copy of it to be filled if it is mutable, and the function that fills it."""
    if isinstance(part, dict):
        return _dictionary(part)
    if isinstance(part, tuple):
        return list(part), None, part._make if hasattr(part, "_make") else type(part)
    if isinstance(part, list):
        items = copy.copy(part)
        return list(part), items, lambda new: _refilled(items, new)
    nested, structure = pytree.tree_flatten(part, is_leaf=lambda inner: inner is not part)
    if len(nested) == 1 and nested[0] is part:  # not registered
        state, empty = _state(part), _shallow(part)
        return list(state.values()), empty, lambda new: _with(empty, state, new)
    return nested, None, lambda new: pytree.tree_unflatten(new, structure)


def _dictionary(part: dict[Any, Any]) -> tuple[list[Any], Any, Callable[[list[Any]], Any]]:
    """Take a dictionary apart; a subclass may also keep its items as attributes, as Hugging Face's do."""
    state: dict[str, Any] = _state(part)
    empty: Any = type(part).__new__(type(part))
    if isinstance(part, defaultdict):
        empty.default_factory = part.default_factory
    put = OrderedDict.__setitem__ if isinstance(part, OrderedDict) else dict.__setitem__

    def fill(new: list[Any]) -> Any:
        for key, item in zip(part, new[: len(part)], strict=True):
            put(empty, key, item)
        return _with(empty, state, new[len(part) :])

    return [*part.values(), *state.values()], empty, fill


def _shallow(part: Any) -> Any:
    """Return a copy of an object, or None if it cannot be copied, such as an open file."""
    try:
        return copy.copy(part)
    except Exception:  # whatever a class may raise: most of them hold no tensor
        return None


def _refilled(items: list[Any], new: list[Any]) -> list[Any]:
    items[:] = new
    return items


def _state(part: Any) -> dict[str, Any]:
    """Return the attributes of an object, including those in slots."""
    slots: list[str] = []
    for kind in type(part).__mro__:
        names = vars(kind).get("__slots__", ())
        slots += [names] if isinstance(names, str) else names
    held = {name: getattr(part, name) for name in slots if not name.startswith("__") and hasattr(part, name)}
    return {**held, **getattr(part, "__dict__", {})}


def _with(part: Any, names: Iterable[str], attributes: Iterable[Any]) -> Any:
    """Set the attributes of a copy, even of a frozen one."""
    if part is None:
        raise TypeError(
            f"the output holds an object with the attributes {', '.join(names)} that cannot be copied, so that its "
            "tensors cannot become values: return the tensors in a tuple or a dictionary"
        )
    for name, attribute in zip(names, attributes, strict=True):
        object.__setattr__(part, name, attribute)
    return part
