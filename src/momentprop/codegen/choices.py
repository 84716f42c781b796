"""Which condition of a formula is worth testing for a whole block of elements.

Vector instructions compute both sides of a choice for every element. Where both are long, such as one quadrature for
small variances and another for large ones, a block whose elements all take one side can skip the other.
"""

from collections.abc import Callable
from typing import Any

from momentprop.codegen.formula import Formula, Reference_, Step, pruned

_WORTH = 0.15
"""The share of the work that each answer must save."""

_SHORT = 200  # work that takes less time than the test

_LONG = frozenset("exp exp2 expm1 log log1p erf erfc tanh sigmoid sin cos atan pow div reciprocal sqrt rsqrt".split())
_OF_A_LONG_STEP = 8  # in units of a multiplication


def worth_asking(formula: Formula) -> int | None:
    """Return the number of the condition that saves most, if either answer saves enough."""
    conditions = {step.arguments[0].number for step in formula.steps if step.op == "where"}
    whole, best, found = _work(formula), 0.0, None
    for number in sorted(conditions) if whole > _SHORT else ():
        sides = [_work(assuming(formula, number, answer)) for answer in (True, False)]
        saved = whole - sum(sides) / 2
        if whole - max(sides) >= _WORTH * whole and saved > best:
            best, found = saved, number
    return found


def assuming(formula: Formula, condition: int, answer: bool) -> Formula:
    """Return what a formula computes where a condition has a known answer."""
    side: dict[int, int] = {}  # the result that each choice takes
    for number, step in enumerate(formula.steps, len(formula.inputs)):
        if step.op == "where" and step.arguments[0] == Reference_(condition):
            chosen = step.arguments[1 if answer else 2]
            if isinstance(chosen, Reference_) and formula.kind(chosen.number) == (step.dtype, step.wide):
                side[number] = side.get(chosen.number, chosen.number)
    steps = tuple(_renamed(step, lambda number: side.get(number, number)) for step in formula.steps)
    return pruned(formula._replace(steps=steps, outputs=tuple(side.get(k, k) for k in formula.outputs)))


def _renamed(step: Step, name: Callable[[int], int]) -> Step:
    def renamed(argument: Any) -> Any:
        return Reference_(name(argument.number)) if isinstance(argument, Reference_) else argument

    return step._replace(arguments=tuple(map(renamed, step.arguments)))


def _work(formula: Formula) -> int:
    return sum(_OF_A_LONG_STEP if step.op in _LONG else 1 for step in formula.steps)
