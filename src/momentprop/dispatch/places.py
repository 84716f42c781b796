"""Where a result's elements come from, for operations that move them: found by moving numbers."""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch.call import Call
from momentprop.dispatch.operand import Operand


def repeats(call: Call) -> bool:
    """Return whether an element of a value occurs more than once in a move's result."""
    numbers: dict[int, Tensor] = {}  # a value that occurs twice has the same elements twice
    count = 1
    for value in call.values:
        if id(value) not in numbers:
            numbers[id(value)] = _numbered(value, count)
            count += value.numel()
    found = _places(call, [numbers[id(value)] for value in call.values])
    found = found[found > 0]
    return bool(found.unique().numel() < found.numel())


def put_back(call: Call, gradient: Any) -> tuple[Tensor, ...]:
    r"""Return $W^\top g$ for an operation that moves elements: everything that came from an element is added up there.

    The call comes without its constants. Integer tensors in the result, such as the sizes of packed batches, are
    skipped.
    """
    sizes = [value.numel() for value in call.values]
    starts = [1 + sum(sizes[:position]) for position in range(len(sizes))]
    found = _places(call, [_numbered(value, start) for value, start in zip(call.values, starts, strict=True)])
    parts = [part.flatten() for part in _floating(gradient)]
    given = torch.cat(parts) if len(parts) > 1 else parts[0]
    total = given.new_zeros(1 + sum(sizes)).index_add(0, found.to(given.device), given)
    pieces = total[1:].split(sizes)
    return tuple(
        piece.reshape(value.shape).to(value.device, value.dtype)
        for piece, value in zip(pieces, call.values, strict=True)
    )


def _numbered(value: Any, start: int) -> Tensor:
    """Return the numbers of a value's elements, in a type that moves as they do and counts far enough."""
    numbers = torch.arange(start, start + value.numel(), dtype=torch.float64, device=value.device)
    return numbers.reshape(value.shape)


def _places(call: Call, numbers: list[Tensor]) -> Tensor:
    """Return for each element of the result the number of its source, zero for a constant, in one dimension."""
    if call.operation.converts:  # a short type cannot hold the numbers
        return numbers[0].flatten().long()
    homogeneous = call.operation.homogeneous(call)
    args = [wide(argument) for argument in homogeneous.args]
    kwargs = {name: wide(argument) for name, argument in homogeneous.kwargs.items()}
    result = Call(call.operation, args, kwargs).on(*numbers)
    return torch.cat([part.flatten() for part in _floating(result)]).long()


def _floating(result: Any) -> list[Tensor]:
    parts = result if isinstance(result, list | tuple) else [result]
    return [part for part in parts if part.is_floating_point()]


def wide(argument: Any) -> Any:
    """Return an argument with its plain floating-point tensors in the type of the numbers."""
    if isinstance(argument, Tensor) and not isinstance(argument, Operand):
        return argument.double() if argument.is_floating_point() else argument
    if type(argument) in (list, tuple):
        return type(argument)(wide(item) for item in argument)
    return argument
