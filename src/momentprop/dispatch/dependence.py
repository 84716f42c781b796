"""The warning when an operation treats values as independent although they are known not to be."""

import warnings
from collections.abc import Sequence
from typing import Any

from momentprop.dispatch.call import Call
from momentprop.dispatch.elements import related
from momentprop.dispatch.place import where
from momentprop.torch_compat.dynamo import constant


class DependenceWarning(UserWarning):
    """An operation treats values as independent that depend on each other."""

    __module__ = "momentprop"  # where users find it


def warn_dependent(op: str) -> None:
    """Warn that an operation's arguments are not independent, once for each place in a model."""
    _warn(
        f"the arguments of {op!r} at {where()} have elements in common, or are functions of one value, but its "
        "rule takes them as independent, so that mean and variance may be wrong: compare with method='sample'"
    )


@constant
def _warn(message: str) -> bool:
    """Warn while a compiler traces too, which runs this once."""
    warnings.warn(message, DependenceWarning, stacklevel=3)
    return True


def any_related(values: Sequence[Any]) -> bool:
    """Return whether any two of these values are known to depend on each other."""
    return any(related(values[i], values[j]) for i in range(1, len(values)) for j in range(i))


def warn_if_related(call: Call) -> None:
    """Warn if two of a call's values are known to depend on each other."""
    if any_related(call.values):
        warn_dependent(call.op)
