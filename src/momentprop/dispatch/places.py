"""Where the elements of a result come from, for operations that move them: found by moving numbers."""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch.call import Call
from momentprop.dispatch.operand import Operand


def repeats(call: Call) -> bool:
    """Return whether an element of a value occurs more than once in the result of an operation that moves elements."""
    numbers: dict[int, Tensor] = {}  # a value that is given twice has the same elements twice
    count = 1
    for value in call.values:
        if id(value) not in numbers:
            numbers[id(value)] = _numbered(value, count)
            count += value.numel()
    found = _places(call, [numbers[id(value)] for value in call.values])
    found = found[found > 0]
    return bool(found.unique().numel() < found.numel())


def put_back(call: Call, gradient: Any) -> tuple[Tensor, ...]:
    r"""Return $W^\top g$ for an operation that moves elements: what came from an element is added up there.

    The call is without its constants. An integer tensor in the result, such as the sizes of packed batches, is passed
    over.
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
    """Return the numbers of the elements of a value, in a type that moves as they do and counts far enough."""
    numbers = torch.arange(start, start + value.numel(), dtype=torch.float64, device=value.device)
    return numbers.reshape(value.shape)


def _places(call: Call, numbers: list[Tensor]) -> Tensor:
    """Return the number of the element that each element of the result is, zero for a constant, in one dimension."""
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
