"""Values that stand for plain tensors: a tensor that a model writes a value into becomes a value, for one pass.

A cache, a buffer or a tensor of zeros is plain until a value is written into it. From then on a *stand-in* takes its
place in every operation: a value whose components are copies of the whole memory of the tensor. All tensors in this
memory, views taken before or after the write, are views of the stand-in with their own strides. The plain memory itself
is not written to, so buffers and caches are as before once the pass is over.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import where
from momentprop.dispatch.rule_table import operation_named
from momentprop.dispatch.spelling import spelled
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.functorch import is_wrapped
from momentprop.torch_compat.tensors import base_of, memory_of
from momentprop.values import Certain, Value
from momentprop.values.conversion import is_value

_ABOUT = frozenset(
    """__get__ __set__ __hash__ __len__ size dim ndimension numel nelement stride storage_offset is_floating_point
    is_complex is_signed is_contiguous is_inference is_pinned element_size get_device untyped_storage data_ptr
    requires_grad_""".split()
)
"""Attributes that ask about a tensor and not its elements; those that are views share its memory."""


class StandIns:
    """The stand-ins of one pass, by the memory of the plain tensors."""

    def __init__(self, kind: type[Value]) -> None:
        self.kind = kind
        self.by_memory: dict[int, _StandIn] = {}
        self.by_identity: dict[int, Certain] = {}  # draws in tensors that a transform of torch has made

    def __bool__(self) -> bool:
        return bool(self.by_memory or self.by_identity)

    def seen(self, x: Any) -> Any:
        """Return what stands for a plain tensor, or anything else itself."""
        if not isinstance(x, Tensor):
            return x
        memory = memory_of(x)
        if memory is None:
            return self.by_identity.get(id(x), x)
        found = self.by_memory.get(memory)
        return x if found is None else found.view(x)

    def among(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the arguments of an operation with stand-ins in place of the plain tensors that have one."""
        return pytree.tree_map(self.seen, (tuple(args), dict(kwargs)), is_leaf=is_value)

    def target(self, tensor: Any, name: str, values: Sequence[Any]) -> Any:
        """Return what an operation must write to when it writes these values into a plain tensor."""
        if not isinstance(tensor, Tensor) or torch.compiler.is_compiling():
            return tensor
        if not tensor.is_floating_point():
            raise RuntimeError(
                f"in-place {name!r} at {where()} would write a random value into a tensor of {tensor.dtype}: make that "
                "tensor floating-point"
            )
        memory = memory_of(tensor)
        if memory is None:  # made inside a transform of torch, and gone with it: a draw may be written into it
            if issubclass(self.kind, Certain):
                return self.by_identity.setdefault(id(tensor), self.kind.of(tensor))
            return tensor
        if memory not in self.by_memory:
            self.by_memory[memory] = _StandIn(self.kind, tensor, values)
        return self.by_memory[memory].view(tensor)


class _StandIn:
    """The value that stands for everything in one memory."""

    def __init__(self, kind: type[Value], tensor: Tensor, values: Sequence[Any]) -> None:
        self.tensor = tensor  # kept, so that no other tensor gets its memory during the pass
        whole = base_of(tensor)
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        elements = whole.as_strided((count,), (1,), 0).clone()
        for value in values:  # batched tensors of `vmap` cannot be written into unbatched ones
            first = getattr(value, value.components[0])
            if is_wrapped(first):
                elements = elements + torch.zeros_like(first, dtype=elements.dtype).sum()
        self.value = kind.certain(elements)
        self.views: dict[Any, Any] = {}
        self.count = [0]  # of writes, which the views share

    def view(self, tensor: Tensor) -> Any:
        """Return the view of the stand-in that has the shape, strides and place of a tensor."""
        if tensor.dtype != self.tensor.dtype:
            raise RuntimeError(
                f"memory with a random value is read as {tensor.dtype} at {where()}, but the value was written as "
                f"{self.tensor.dtype}: convert a tensor with `.to(dtype)`, not with `.view(dtype)`"
            )
        size, stride, offset = tensor.shape, tensor.stride(), int(tensor.storage_offset())
        key = (size, stride, offset, torch.is_grad_enabled())  # torch refuses writes to views made without gradients
        if key not in self.views or self.views[key].stride() != stride:  # it may have changed its own shape
            view = self.value.each(lambda part: _strided(part, size, stride, offset))
            view.memory = self.count
            self.views[key] = view
        return self.views[key]


def _strided(part: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Return a view of the elements along the last dimension of a component."""
    return part.as_strided((*part.shape[:-1], *size), (*part.stride()[:-1], *stride), offset)


def writes(name: str) -> bool:
    """Return whether a function of this name writes to its first argument."""
    return name.endswith("_") and not name.endswith("__") if name[:2] != "__" else spelled(name).in_place


def is_about(name: str) -> bool:
    """Return whether a function asks about a tensor, or changes its shape in place, and reads no elements."""
    return name in _ABOUT or (writes(name) and operation_named(spelled(name).op).views)


def as_given(result: Any, given: Sequence[Any], args: Sequence[Any]) -> Any:
    """Return the plain tensor if the result of an operation is its first argument itself, whose stand-in was used."""
    if given and isinstance(given[0], Tensor) and isinstance(args[0], Value) and isinstance(result, Value):
        return given[0] if result.parts[0] is args[0].parts[0] else result
    return result


def own_method(function: Callable[..., Any], name: str, first: Any) -> Callable[..., Any] | None:
    """Return the method that a value has in place of a tensor's, if that is not an operation with rules."""
    if not isinstance(first, Value) or getattr(Tensor, name, None) is not function:
        return None
    method = getattr(type(first), name, None)
    return None if method is None or hasattr(method, "of_tensor") else method
