r"""What each kind of map does to the statistics of a data set: the rules of kinds on `Statistics`.

A dimension of one element stands for examples or positions, whose number is unknown. An operation on single elements,
or along the channels, acts on the pixel as on a `Normal`. One that relates positions or examples has no meaning for one
pixel, unless it has its own rule here.
"""

from typing import Any, NoReturn

from momentprop.dispatch import Call, Kind, MissingRule, rule
from momentprop.dispatch import where as place
from momentprop.dispatch.rule_table import apply_as, find, order_of
from momentprop.rules.statistics.as_normal import INSTEAD, refuse
from momentprop.values import Normal, Statistics
from momentprop.values.base import Value


def _relates_positions(call: Call) -> NoReturn:
    raise MissingRule(
        f"no Statistics rule for {call.op!r} at {place()}: it relates positions or examples, and the statistics "
        f"of one pixel do not tell how they depend on each other; {INSTEAD}"
    )


def _require_channels(call: Call) -> None:
    """Refuse an operation along a dimension of examples or positions."""
    input, operation = call.values[0], call.operation
    dims = operation.dims(call)
    if dims is not None and any(input.shape[d] == 1 for d in dims):
        dim = call.given(operation.along or "", operation.default)
        refuse(call.op, f"along dimension {dim} of {tuple(input.shape)} (examples or positions)")


@rule(Kind.MOVES, on=Statistics)
def moved(call: Call) -> Any:
    """Move the channels of the pixel."""
    if call.operation.positional:
        _relates_positions(call)
    return apply_as(call, Normal)


@rule(Kind.LINEAR, Kind.BILINEAR, Kind.MIXING, on=Statistics)
def mixed(call: Call) -> Any:
    """Relate elements at one place, or channels."""
    operation = call.operation
    if operation.pointwise is None and not getattr(operation, "diagonal", False):
        if operation.along is None or operation.positional:
            _relates_positions(call)
        _require_channels(call)
    return apply_as(call, Normal)


@rule(Kind.NOISE, on=Statistics)
def with_noise(call: Call) -> Any:
    """Draw for each unit alone, or along the channels."""
    if call.operation.along is not None:
        _require_channels(call)
    return apply_as(call, Normal)


@rule(Kind.COMPOSITE, on=Statistics)
def composed(call: Call) -> Any:
    """Run the composite's operations, which ask the same questions again."""
    if call.operation.positional:
        _relates_positions(call)
    if call.operation.along is not None:
        _require_channels(call)
    body: Any = find(call.op, Value)
    return body(*call.args, **call.kwargs)


@rule(Kind.LOSS, on=Statistics)
def lost(call: Call) -> NoReturn:
    """Refuse: a loss compares examples with their targets."""
    _relates_positions(call)


@rule(Kind.ELEMENTWISE, on=Statistics)
def transformed(call: Call) -> Any:
    """Apply a function of each element: by the kernel for one pixel, or by that of `Normal`."""
    operation, value = call.operation, call.values[0]
    function = operation.transform(call, (*order_of(type(value)), Normal))
    return value.transformed(function)
