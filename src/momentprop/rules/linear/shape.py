r"""Operations that move, select, copy or convert elements."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Call, Kind, rule
from momentprop.dispatch.places import repeats
from momentprop.dispatch.registry import composite, method, moves
from momentprop.values import Certain, Normal
from momentprop.values.base import Value

Random = Any  # a value or a plain tensor


def _twice(call: Call) -> bool:
    """Return whether one value occurs twice."""
    return len({id(value) for value in call.values}) < len(call.values)


def _methods(ops: str, **facts: Any) -> None:
    for op in ops.split():
        moves(op, on=Normal, plain=method("__getitem__" if op == "getitem" else op), **facts)


# views: the result can share memory with the value
_methods("alias detach flatten movedim permute ravel requires_grad_ reshape squeeze t transpose", views=True)
_methods("unflatten unsqueeze view", views=True)
_methods("chunk dsplit hsplit narrow select split tensor_split unbind vsplit", views=True)
_methods("getitem", views=True, parameters="input index", copies=repeats)
_methods("broadcast_to expand", views=True, copies=True)
_methods("diagonal", views=True, positional=True)
_methods("as_strided", views=True, positional=True, copies=repeats)
_methods("bfloat16 contiguous double float half", views=True, converts=True)
_methods("cpu cuda", views=True)
# copies of memory
_methods("clone", converts=True)
_methods("flip fliplr flipud roll")
_methods("gather index_select", copies=repeats)
_methods("repeat repeat_interleave tile", copies=True)
_methods("diag diag_embed diagflat masked_select rot90 tril triu", positional=True)
_methods("take take_along_dim", positional=True, copies=repeats)
moves("channel_shuffle", "pixel_shuffle", on=Normal)
moves("pixel_unshuffle", on=Normal, positional=True)


def _one_value(call: Call) -> Kind:
    """Return the kind: a move, or composite if another value gives the type and device."""
    return Kind.MOVES if len(call.values) == 1 and isinstance(call.args[0], Value) else Kind.COMPOSITE


moves("to", on=Normal, plain=method("to"), views=True, converts=True, decide=_one_value)


@rule("to", on=Value)
def to(input: Random, other: Random, *args: Any, **kwargs: Any) -> Any:
    r"""The elements, in another value's type and on its device.

    Error: exact
    Source: definition
    """
    return input.to(other.device, other.dtype, *args, **kwargs)


@composite("type_as", on=Value)
def type_as(input: Random, other: Random) -> Any:
    r"""The elements, in the type of another value or tensor.

    Error: exact
    Source: definition
    """
    return input.to(other.device, other.dtype)


@composite("expand_as", on=Value)
def expand_as(input: Random, other: Random) -> Any:
    r"""The elements expanded to the shape of another value or tensor.

    Error: exact (sums and means know copies of one element, and other operations treat them as independent)
    Source: definition
    """
    return input.expand(other.shape)


@composite("reshape_as", "view_as", on=Value)
def reshape_as(input: Random, other: Random) -> Any:
    r"""The elements, in the shape of another value or tensor.

    Error: exact
    Source: definition
    """
    return input.reshape(other.shape)


def _named_type(call: Call) -> Kind:
    return Kind.PLAIN if call.given("dtype") is None else Kind.MOVES


moves("type", on=Normal, plain=method("type"), parameters="input dtype", views=True, converts=True, decide=_named_type)


@rule("type", on=Value)
def type_name(input: Value) -> Any:
    r"""The name of the type of the elements.

    Error: exact
    Source: definition
    """
    return getattr(input, input.components[0]).type()


def _windows(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Apply `Tensor.unfold(dimension, size, step)` or `F.unfold(kernel_size, ...)`, which share one name in torch."""
    by_dimension = (len(args) == 3 and not kwargs) or "dimension" in kwargs or "step" in kwargs
    return input.unfold(*args, **kwargs) if by_dimension else F.unfold(input, *args, **kwargs)


moves("unfold", on=Normal, plain=_windows, views=True, positional=True, copies=True)


def _resized(input: Tensor, *sizes: Any) -> Tensor:
    """Take the first elements in memory, in another shape, as `Tensor.resize_` does where these suffice."""
    size = torch.Size(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes)
    if size.numel() > input.numel():
        raise RuntimeError(
            f"`resize_` from {tuple(input.shape)} to {tuple(size)} would add elements without a value: ask for at most "
            f"{input.numel()} elements"
        )
    return input.as_strided(size, torch.empty(size, device="meta").stride())


def _resized_as(input: Tensor, other: Any) -> Tensor:
    return _resized(input, other.shape)


moves("resize", on=Normal, plain=_resized, views=True, positional=True)
moves(
    "resize_as", on=Normal, plain=_resized_as, parameters="input the_template", summands=("input",), views=True,
    positional=True,
)  # fmt: skip

_JOINED: Any = {"parameters": "tensors dim", "summands": ("tensors",), "copies": _twice}
moves("cat", "stack", "hstack", "vstack", "dstack", "row_stack", "column_stack", on=Normal, **_JOINED)
moves("block_diag", on=Normal, summands=("*",), positional=True, copies=_twice)


@composite("broadcast_tensors", on=Value)
def broadcast_tensors(*tensors: Random) -> tuple[Random, ...]:
    r"""Values and plain tensors, expanded to their common shape.

    Error: exact (sums and means know copies of one element, and other operations treat them as independent)
    Source: definition
    """
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return tuple(tensor.expand(shape) for tensor in tensors)


def _bordered(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    return F.pad(input, list(pad), mode, value)


def _copies_border(call: Call) -> bool:
    return bool(call.given("mode", "constant") != "constant")


moves("pad", on=Normal, plain=_bordered, parameters="input pad mode value", summands=("value",), copies=_copies_border)
moves(
    "masked_fill",
    on=Normal,
    plain=method("masked_fill"),
    parameters="input mask value",
    summands=("input", "value"),
    copies=repeats,
)
moves("where", on=Normal, parameters="condition input other", summands=("input", "other"), copies=repeats)


@rule("unflatten", on=Certain)
def unflatten(input: Certain, dim: int, sizes: Sequence[int]) -> Certain:
    r"""The unflattened tensor, by its own method, because compilers do not trace `torch.Tensor.unflatten`.

    Error: exact
    Source: definition
    """
    return input.of(input.loc.unflatten(dim, sizes))
