"""The constants of a model: the attributes of its modules that are not parameters, as text or as tensors.

A slope, a dropout rate or a stride decides what a module computes, just like its weights. Numbers, strings and
containers of them become text, and functions and classes their names. An object of any other class counts by that class
alone, except for dataclasses, distributions and partial functions, whose content counts. Devices and number types do
not count, because a model can be moved.
"""

import dataclasses
import functools
import hashlib
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from momentprop.values import Value

_DEPTH = 6  # how deep containers are opened; deeper ones, and those that contain themselves, count by their class
_OWN = frozenset({*vars(nn.Module()), "training"})  # the attributes of every module
_PLAIN = (bool, int, float, complex, str, tuple, list)  # constants of a class; the rest of its attributes is code


def constants(module: nn.Module) -> Iterator[tuple[str, str, list[Tensor]]]:
    """The name of each attribute of a module, its text, and the tensors in it."""
    for name, value in _attributes(module).items():
        tensors: list[Tensor] = []
        yield name, text(value, tensors), tensors


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module by name; an attribute of its class counts if it is plain."""
    found: dict[str, Any] = {}
    for base in reversed(type(module).__mro__[: type(module).__mro__.index(nn.Module)]):
        found |= {k: v for k, v in vars(base).items() if isinstance(v, _PLAIN) and not k.startswith("__")}
    return {name: value for name, value in {**found, **vars(module)}.items() if name not in _OWN}


def text(value: Any, tensors: list[Tensor], depth: int = _DEPTH) -> str:
    """A value as text; equal values have equal texts. Appends the tensors in it to a list."""
    if value is None or isinstance(value, bool | str):
        return repr(value)
    if isinstance(value, numbers.Number):
        return repr(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if isinstance(value, Tensor):
        tensors.append(value)
        return "tensor"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return str(value.__qualname__)
    return _opened(value, tensors, depth - 1) if depth else type(value).__name__


def _opened(value: Any, tensors: list[Tensor], depth: int) -> str:
    """The text of a container."""
    if isinstance(value, tuple | list):
        return f"({', '.join(text(each, tensors, depth) for each in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(text(each, tensors, depth) for each in value))}}}"
    if isinstance(value, Mapping):
        inside = value
    elif isinstance(value, functools.partial):
        inside = {"func": value.func, "args": value.args, **value.keywords}
    elif dataclasses.is_dataclass(value):
        inside = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    elif isinstance(value, Distribution):
        inside = {name: getattr(value, name, None) for name in value.arg_constraints}
    elif isinstance(value, Value):  # a random weight
        inside = {name: getattr(value, name) for name in value.components}
    else:
        return _named(value)
    parts = (f"{text(name, tensors, depth)}: {text(each, tensors, depth)}" for name, each in inside.items())
    return f"{'' if isinstance(value, Mapping) else type(value).__name__}{{{', '.join(parts)}}}"


def _named(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, torch.Generator) or not hasattr(value, "tobytes"):
        return name
    return f"{name} with SHA-256 {hashlib.sha256(value.tobytes()).hexdigest()}"  # an array
