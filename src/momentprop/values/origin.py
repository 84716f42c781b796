r"""Where the elements of a value come from: the base they are functions of, and the function."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from momentprop.dispatch import Operand

Function = Callable[..., Tensor]

LONGEST = 32
"""Functions of more operations than this are not followed: their result is a value of its own, taken as normal."""


class Origin(NamedTuple):
    """Elements that are `function(element, *parameters)` of the elements of `base` as they were, `loc, variance`."""

    base: Operand
    loc: Tensor
    variance: Tensor
    writes: int  # to the memory of the base, when the origin was noted
    function: Function
    parameters: tuple[Tensor, ...] = ()  # plain tensors that the function takes besides, which may want gradients
    operations: int = 0

    def has_base_of(self, other: "Origin") -> bool:
        """Whether both are functions of one base, which was not overwritten since."""
        same = self.loc is other.loc and self.variance is other.variance
        return same and self.writes == other.writes == writes_to(self.base)


def writes_to(value: Operand) -> int:
    """How often the memory of a value was written to by in-place operations on it or on its views."""
    return value.memory[0] if value.memory else 0


def combined(function: Function, operands: Sequence[Any]) -> Origin | None:
    """The origin of `function(*operands)`, an elementwise function of origins, plain tensors and numbers.

    None if the origins are of different bases, a tensor does not fit the base's shape, or the function grows too long.
    """
    origins = [operand for operand in operands if isinstance(operand, Origin)]
    base = origins[0]
    operations = 1 + sum(origin.operations for origin in origins)
    if operations > LONGEST or not all(origin.has_base_of(base) for origin in origins[1:]):
        return None
    parameters: list[Tensor] = []
    takes: list[tuple[Any, slice]] = []  # each operand, and which of the parameters are its own
    for operand in operands:
        if isinstance(operand, Tensor) and not _fits(operand, base.loc):
            return None
        own = operand.parameters if isinstance(operand, Origin) else (operand,) if isinstance(operand, Tensor) else ()
        takes.append((operand, slice(len(parameters), len(parameters) + len(own))))
        parameters += own

    def composed(element: Tensor, *given: Tensor) -> Tensor:
        return function(*(_argument(operand, element, given[own]) for operand, own in takes))

    return Origin(base.base, base.loc, base.variance, base.writes, composed, tuple(parameters), operations)


def _argument(operand: Any, element: Tensor, parameters: tuple[Tensor, ...]) -> Any:
    if isinstance(operand, Origin):
        return operand.function(element, *parameters)
    return parameters[0] if isinstance(operand, Tensor) else operand


def _fits(tensor: Tensor, base: Tensor) -> bool:
    pairs = zip(reversed(tensor.shape), reversed(base.shape), strict=False)
    return tensor.is_floating_point() and tensor.ndim <= base.ndim and all(a in (1, b) for a, b in pairs)
