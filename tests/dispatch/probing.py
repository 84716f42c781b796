"""The calls that reach the rules of the kinds, caught by a small type of value, and the matrices that they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from momentprop import Kind, rule
from momentprop.dispatch import Call, forget
from momentprop.values import Value
from tests.examples import EXAMPLES, Example

_KINDS = (Kind.MOVES, Kind.LINEAR, Kind.BILINEAR)
_CAUGHT: list[tuple[Kind, Call]] = []


class Probe(Value):
    """A value that has a rule for each linear kind, which takes a note of the call."""

    loc: Tensor


def _caught(call: Call) -> Any:
    _CAUGHT.append((call.kind, call))
    return Probe.assembled(call.on(*(value.loc for value in call.values)))


@contextmanager
def probing() -> Iterator[list[tuple[Kind, Call]]]:
    """Give the type its rules, for a while."""
    rule(*_KINDS, on=Probe)(_caught)
    _CAUGHT.clear()
    try:
        yield _CAUGHT
    finally:
        for kind in _KINDS:
            forget(kind, on=Probe)


def caught(function: Callable[[Any], Any], *shape: int) -> list[tuple[Kind, Call]]:
    """Return the calls of the linear kinds that a function makes, with the kind of each."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with probing() as calls:
            function(Probe.of(Example(function, shape).value(Probe).loc.detach()))
        return list(calls)
    finally:
        torch.set_default_dtype(dtype)


def example_calls(op: str) -> list[tuple[Kind, Call]]:
    """Return the calls of an operation that its example makes."""
    example = EXAMPLES[op]
    return [(kind, call) for kind, call in caught(example.call, *example.shape) if call.op == op]


def flat(result: Any) -> Tensor:
    """Return the floating-point elements of a result, one after the other."""
    parts = result if isinstance(result, list | tuple) else [result]
    return torch.cat([part.flatten().double() for part in parts if part.is_floating_point()])


def matrices(call: Call) -> list[Tensor]:
    """Return the matrix of a linear call for each value, column by column: no derivative is asked."""
    homogeneous = call.operation.homogeneous(call)
    zeros = [torch.zeros_like(value.loc) for value in call.values]
    found = []
    for position, value in enumerate(call.values):
        columns = []
        for unit in torch.eye(value.loc.numel(), dtype=value.dtype):
            columns.append(
                flat(homogeneous.on(*zeros[:position], unit.reshape(value.shape).clone(), *zeros[position + 1 :]))
            )
        found.append(torch.stack(columns, 1))
    return found
