"""One pixel as a value of independent normal units, for operations whose rule is right for both."""

from typing import Any, NoReturn

from momentprop.dispatch import Call, MissingRule
from momentprop.dispatch import where as place
from momentprop.dispatch.rule_table import operation_named, resolve
from momentprop.values import Normal


def as_normal(op: str, *args: Any, **kwargs: Any) -> Any:
    """Apply the rule of `Normal` for an operation; the result keeps the type of the values."""
    return call_as_normal(Call(operation_named(op), args, kwargs))


def call_as_normal(call: Call) -> Any:
    """Apply the rule of `Normal` to a call."""
    found = resolve(call.op, Normal, call)
    if found is None:
        raise MissingRule(f"no Statistics rule for {call.op!r} at {place()}")
    function, takes_call = found
    return function(call) if takes_call else function(*call.args, **call.kwargs)


def refuse(op: str, why: str) -> NoReturn:
    """Raise the error for an operation whose result one pixel does not tell."""
    raise MissingRule(f"no Statistics rule for {op!r} {why} at {place()}: one pixel does not tell its result")
