r"""The origin of a value: the base that its elements are functions of, and the function."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.dispatch import Operand

Function = Callable[..., Tensor]

_WAVES = (torch.sin, torch.cos)

LONGEST = 32
"""The longest function that is followed, in operations; beyond that, the result is a new base, assumed normal."""


class Origin(NamedTuple):
    """Elements that are `function(element, *parameters)` of a base, which had the components `loc` and `variance`."""

    base: Operand
    loc: Tensor
    variance: Tensor
    writes: int  # to the memory of the base, when the origin was recorded
    function: Function
    parameters: tuple[Tensor, ...] = ()  # further plain tensors, which may require gradients
    operations: int = 0
    oscillates: bool = False
    of: tuple[Tensor, ...] = ()  # the components of the base, if `loc` and `variance` are copies of them

    def of_base(self, base: Operand) -> "Origin":
        """Return the same function of a base that has the same components."""
        return Origin(base, *self[1:])  # dynamo of torch 2.11 does not return what `_replace` makes

    def of_copies(self, loc: Tensor, variance: Tensor) -> "Origin":
        """Return the same function of copies of the components of the base."""
        return Origin(self.base, loc, variance, *self[3:-1], self.of or (self.loc, self.variance))

    def has_base_of(self, other: "Origin") -> bool:
        """Return whether both are functions of one base that has not been overwritten since."""
        one, another = self.of or (self.loc, self.variance), other.of or (other.loc, other.variance)
        same = one[0] is another[0] and one[1] is another[1]
        return same and self.writes == other.writes == writes_to(self.base)


def writes_to(value: Operand) -> int:
    """Return how often in-place operations on a value or its views have written to its memory."""
    return value.memory[0] if value.memory else 0


def combined(function: Function, operands: Sequence[Any]) -> Origin | None:
    """Return the origin of `function(*operands)`, an elementwise function of origins, plain tensors and numbers.

    Returns None if the origins have different bases, a tensor does not fit the shape of the base, or the function
    becomes too long.
    """
    origins = [operand for operand in operands if type(operand) is Origin]
    base, operations, waves = origins[0], 1, function in _WAVES
    for origin in origins:
        operations += origin.operations
        waves = waves or origin.oscillates
        if origin is not base and not origin.has_base_of(base):
            return None
    if operations > LONGEST:
        return None
    parameters: tuple[Tensor, ...] = ()
    takes: list[tuple[Any, slice]] = []  # each operand with its share of the parameters
    for operand in operands:
        own: tuple[Tensor, ...] = ()
        if type(operand) is Origin:
            own = operand.parameters
        elif isinstance(operand, Tensor):
            if not _fits(operand, base.loc):
                return None
            own = (operand,)
        takes.append((operand, slice(len(parameters), len(parameters) + len(own))))
        parameters += own

    def composed(element: Tensor, *given: Tensor) -> Tensor:
        return function(*(_argument(operand, element, given[own]) for operand, own in takes))

    return Origin(base.base, base.loc, base.variance, base.writes, composed, parameters, operations, waves, base.of)


def applied(function: Function, value: Any) -> Origin | None:
    """Return the origin of an elementwise function of one value."""
    waves = function in _WAVES
    if value.origin is None or value.origin[1] != writes_to(value):  # the value is the base itself
        return Origin(value, value.loc, value.variance, writes_to(value), function, (), 1, waves)
    to: Origin = value.origin[0]
    if to.operations >= LONGEST:
        return None
    inner = to.function

    def composed(element: Tensor, *given: Tensor) -> Tensor:
        return function(inner(element, *given))

    operations, waves = to.operations + 1, to.oscillates or waves
    return Origin(to.base, to.loc, to.variance, to.writes, composed, to.parameters, operations, waves, to.of)


def _argument(operand: Any, element: Tensor, parameters: tuple[Tensor, ...]) -> Any:
    if isinstance(operand, Origin):
        return operand.function(element, *parameters)
    return parameters[0] if isinstance(operand, Tensor) else operand


def _fits(tensor: Tensor, base: Tensor) -> bool:
    if tensor.shape == base.shape:
        return tensor.is_floating_point()
    pairs = zip(reversed(tensor.shape), reversed(base.shape), strict=False)
    fits = tensor.ndim <= base.ndim and all([a in (1, b) for a, b in pairs])  # noqa: C419 (a list is quicker)
    return fits and tensor.is_floating_point()
