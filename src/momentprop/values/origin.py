r"""The origin of a value: the base that its elements are functions of, and the function."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.dispatch import Operand

Function = Callable[..., Tensor]

_WAVES = (torch.sin, torch.cos)

LONGEST = 32
"""The longest function that is followed, in operations; beyond, the result is a new base, assumed normal."""


class Origin(NamedTuple):
    """Elements that are `function(element, *parameters)` of a base that had the components `loc` and `variance`."""

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
    if len(operands) == 1:
        return _applied(function, operands[0])
    origins = [operand for operand in operands if isinstance(operand, Origin)]
    base = origins[0]
    operations = 1 + sum(origin.operations for origin in origins)
    if operations > LONGEST or not all(origin.has_base_of(base) for origin in origins[1:]):
        return None
    parameters: list[Tensor] = []
    takes: list[tuple[Any, slice]] = []  # each operand with its share of the parameters
    for operand in operands:
        if isinstance(operand, Tensor) and not _fits(operand, base.loc):
            return None
        own = operand.parameters if isinstance(operand, Origin) else (operand,) if isinstance(operand, Tensor) else ()
        takes.append((operand, slice(len(parameters), len(parameters) + len(own))))
        parameters += own

    def composed(element: Tensor, *given: Tensor) -> Tensor:
        return function(*(_argument(operand, element, given[own]) for operand, own in takes))

    waves = function in _WAVES or any(origin.oscillates for origin in origins)
    return Origin(
        base.base, base.loc, base.variance, base.writes, composed, tuple(parameters), operations, waves, base.of
    )


def _applied(function: Function, to: Origin) -> Origin | None:
    """Return the origin of a function of one origin."""
    if to.operations >= LONGEST:
        return None
    inner = to.function

    def composed(element: Tensor, *given: Tensor) -> Tensor:
        return function(inner(element, *given))

    waves = to.oscillates or function in _WAVES
    return Origin(to.base, to.loc, to.variance, to.writes, composed, to.parameters, to.operations + 1, waves, to.of)


def _argument(operand: Any, element: Tensor, parameters: tuple[Tensor, ...]) -> Any:
    if isinstance(operand, Origin):
        return operand.function(element, *parameters)
    return parameters[0] if isinstance(operand, Tensor) else operand


def _fits(tensor: Tensor, base: Tensor) -> bool:
    pairs = zip(reversed(tensor.shape), reversed(base.shape), strict=False)
    return tensor.is_floating_point() and tensor.ndim <= base.ndim and all(a in (1, b) for a, b in pairs)
