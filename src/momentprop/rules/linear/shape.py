r"""Operations that move, select, copy or convert elements: each acts on the mean and on the variance alike."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.rules.attention.notes import keep_note
from momentprop.values import Certain, Normal
from momentprop.values.moments import mean_of, variance_of

VIEWS = """
    alias as_strided broadcast_to chunk contiguous cpu cuda detach diagonal double dsplit expand expand_as flatten float
    getitem half bfloat16 hsplit movedim narrow permute ravel reshape reshape_as requires_grad_ select split squeeze t
    tensor_split to transpose type_as unbind unflatten unsqueeze view view_as vsplit
""".split()
"""Operations whose result may share memory with the value."""

COPIES = """
    clone diag diag_embed diagflat flip fliplr flipud gather index_select masked_select repeat repeat_interleave roll
    rot90 take take_along_dim tile tril triu
""".split()


CONVERSIONS = "bfloat16 clone contiguous double float half to type type_as".split()
"""Operations that leave every element in its place."""


def _register_method(op: str, shares_memory: bool) -> None:
    name = "__getitem__" if op == "getitem" else op

    def move(input: Normal | Tensor, *args: Any, **kwargs: Any) -> Any:
        args = tuple(mean_of(argument) for argument in args)  # `x.type_as(value)` and the like
        if not isinstance(input, Normal):
            return getattr(input, name)(*args, **kwargs)
        result = input.each(lambda part: getattr(part, name)(*args, **kwargs))
        if shares_memory:
            memory = input.memory or [0]
            for value in (input, *(result if isinstance(result, tuple) else (result,))):
                value.memory = memory
        return _converted(result, input) if op in CONVERSIONS else result

    _document(move, op)
    rule(op, on=Normal)(move)


def _converted(result: Normal, input: Normal) -> Normal:
    """The same elements in another type, now remembering what they remember."""
    if result.device == input.device:
        result.remember(input.source)
    return keep_note(result, input)  # type: ignore[no-any-return]


def _register_function(op: str, function: Callable[..., Tensor]) -> None:
    def move(input: Normal, *args: Any, **kwargs: Any) -> Any:
        return input.each(lambda part: function(part, *args, **kwargs))

    _document(move, op)
    rule(op, on=Normal)(move)


def _document(move: Callable[..., Any], op: str) -> None:
    move.__name__ = op
    move.__doc__ = f"Elements moved by `{op}`, means and variances alike.\n\nError: exact\nSource: definition"


for _op in VIEWS:
    _register_method(_op, shares_memory=True)
for _op in COPIES:
    _register_method(_op, shares_memory=False)
_register_function("channel_shuffle", F.channel_shuffle)
_register_function("pixel_shuffle", F.pixel_shuffle)
_register_function("pixel_unshuffle", F.pixel_unshuffle)


@rule("type", on=Normal)
def type(input: Normal, dtype: Any = None, non_blocking: bool = False) -> Any:
    r"""The value in another type, or the name of its type.

    Error: exact
    Source: definition
    """
    if dtype is None:
        return input.loc.type()
    result = input.each(lambda part: part.type(dtype, non_blocking=non_blocking))
    input.memory = result.memory = input.memory or [0]  # type: ignore[misc]
    return _converted(result, input)


@rule("unfold", on=Normal)
def unfold(input: Normal, *args: Any, **kwargs: Any) -> Normal:
    r"""Sliding windows, by `Tensor.unfold(dimension, size, step)` or, in columns, by `torch.nn.functional.unfold`.

    Error: exact (copies of one element are treated as independent from then on)
    Source: definition
    """
    by_dimension = len(args) == 3 and not kwargs  # torch gives both functions one name
    return input.each(  # type: ignore[no-any-return]
        lambda part: part.unfold(*args).clone() if by_dimension else F.unfold(part, *args, **kwargs)
    )


def _join(function: Callable[..., Tensor], tensors: Sequence[Normal | Tensor], dim: int) -> Normal:
    first = next(tensor for tensor in tensors if isinstance(tensor, Normal))
    return first.of(
        function([mean_of(tensor) for tensor in tensors], dim),
        function([variance_of(tensor) for tensor in tensors], dim),
    )


@rule("cat", on=Normal)
def cat(tensors: Sequence[Normal | Tensor], dim: int = 0) -> Normal:
    r"""Values and plain tensors joined along a dimension; plain elements have zero variance.

    Error: exact
    Source: definition
    """
    return _join(torch.cat, tensors, dim)


@rule("stack", on=Normal)
def stack(tensors: Sequence[Normal | Tensor], dim: int = 0) -> Normal:
    r"""Values and plain tensors joined along a new dimension; plain elements have zero variance.

    Error: exact
    Source: definition
    """
    return _join(torch.stack, tensors, dim)


def _register_join(op: str) -> None:
    function: Callable[..., Tensor] = getattr(torch, op)

    def join(tensors: Sequence[Normal | Tensor]) -> Normal:
        return _join(lambda parts, _: function(parts), tensors, 0)

    join.__name__ = op
    join.__doc__ = f"Values and plain tensors joined by `{op}`.\n\nError: exact\nSource: definition"
    rule(op, on=Normal)(join)


for _op in "hstack vstack dstack row_stack column_stack".split():
    _register_join(_op)


@rule("block_diag", on=Normal)
def block_diag(*tensors: Normal | Tensor) -> Normal:
    r"""Values and plain tensors along the diagonal of a matrix, among certain zeros.

    Error: exact
    Source: definition
    """
    return _join(lambda parts, _: torch.block_diag(*parts), tensors, 0)


@rule("broadcast_tensors", on=Normal)
def broadcast_tensors(*tensors: Normal | Tensor) -> tuple[Normal | Tensor, ...]:
    r"""Values and plain tensors, each expanded to the shape they have in common.

    Error: exact (copies of one element are treated as independent from then on)
    Source: definition
    """
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return tuple(tensor.expand(shape) for tensor in tensors)  # type: ignore[union-attr]


@rule("pad", on=Normal)
def pad(input: Normal, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Normal:
    r"""A border around the elements: a constant is certain, a copied element brings its mean and variance.

    Error: exact (copies of one element are treated as independent from then on)
    Source: definition
    """
    pad = list(pad)
    border = None if mode == "constant" else value
    return input.of(F.pad(input.loc, pad, mode, value), F.pad(input.variance, pad, mode, border))


@rule("masked_fill", on=Normal)
def masked_fill(input: Normal, mask: Tensor, value: float | Tensor) -> Normal:
    r"""Elements under the mask replaced by a certain number.

    Error: exact
    Source: definition
    """
    return input.of(input.loc.masked_fill(mask, value), input.variance.masked_fill(mask, 0.0))


@rule("where", on=Normal)
def where(condition: Tensor, input: Normal | Tensor | float, other: Normal | Tensor | float) -> Normal:
    r"""Elements chosen by a plain condition from two values, or from a value and a plain tensor.

    Error: exact
    Source: definition
    """
    value = input if isinstance(input, Normal) else other
    assert isinstance(value, Normal), "a random condition has no rule"
    loc = torch.where(condition, mean_of(input), mean_of(other))
    variance = torch.where(condition, variance_of(input), variance_of(other))
    return value.of(loc, variance.to(loc.dtype))


@rule("unflatten", on=Certain)
def unflatten(input: Certain, dim: int, sizes: Sequence[int]) -> Certain:
    r"""The tensor of the value, reshaped: by its own method, as compilers do not trace `torch.Tensor.unflatten`.

    Error: exact
    Source: definition
    """
    return input.of(input.loc.unflatten(dim, sizes))


@rule("setitem", on=Normal)
def setitem(input: Normal, index: Any, value: Normal | Tensor | float) -> Normal:
    r"""Indexed elements replaced by another value, or by certain numbers.

    Error: exact
    Source: definition
    """
    loc, variance = input.loc.clone(), input.variance.clone()
    loc[index] = mean_of(value)
    variance[index] = variance_of(value)
    return input.of(loc, variance)
