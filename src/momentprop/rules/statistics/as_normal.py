"""One pixel as a value of independent normal units, for operations whose rule suits both."""

from typing import Any, NoReturn

from momentprop.dispatch import Call, MissingRule
from momentprop.dispatch import where as place
from momentprop.dispatch.rule_table import apply_as, operation_named
from momentprop.values import Normal

INSTEAD = "`initialize(model, inputs, method='batch')` measures on inputs instead"
"""What to do where one pixel is not enough."""


def as_normal(op: str, *args: Any, **kwargs: Any) -> Any:
    """Apply the rule of `Normal` for an operation; the result keeps the type of the values."""
    return apply_as(Call(operation_named(op), args, kwargs), Normal)


def refuse(op: str, why: str) -> NoReturn:
    """Raise the error for an operation whose result does not follow from one pixel."""
    raise MissingRule(
        f"no Statistics rule for {op!r} {why} at {place()}: the result does not follow from the statistics of one "
        f"pixel; {INSTEAD}"
    )
