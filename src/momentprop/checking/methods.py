"""The methods to compare, each a function with the interface of `propagate`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from momentprop.propagate import propagate

CALIBRATED = "ap2-calibrated"
"""The name of AP2 with a calibration."""

Method = str | tuple[str, Mapping[str, Any] | Callable[..., Any]]
"""A name; or a name with options for `propagate`, or with a function that takes and returns what `propagate` does."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "ap1": {"method": "ap1"},
    "ap2": {},
    "ap2-normal": {"family": "normal"},
    "ap2-logistic": {"family": "logistic"},
    "ap2-fitted": {"family": "fitted"},
}

_PASSES = {"ap1": 1, **dict.fromkeys(("ap2", "ap2-normal", "ap2-logistic", "ap2-fitted", CALIBRATED), 2)}


def functions(methods: Sequence[Method], calibration: Any = None) -> dict[str, Callable[..., Any]]:
    """The methods by name; a calibration adds calibrated AP2."""
    if isinstance(methods, str):
        raise TypeError(f"methods must be a sequence: write `methods=({methods!r},)`")
    if calibration is not None:
        methods = [*methods, (CALIBRATED, {"calibration": calibration})]
    found = dict(map(_named, methods))
    if not found or len(found) < len(methods):
        raise ValueError("give at least one method, each with its own name")
    return found


def passes(name: str) -> int | None:
    """The nominal cost in forward passes: one for means, one more for variances; None for a user's own method."""
    return _PASSES.get(name)


def _named(method: Method) -> tuple[str, Callable[..., Any]]:
    if isinstance(method, str):
        if method not in _OPTIONS:
            known = ", ".join(map(repr, _OPTIONS))
            raise ValueError(f"unknown method {method!r}: choose from {known}, or give a name and options of propagate")
        return method, _propagate_with(_OPTIONS[method])
    name, how = method
    return name, how if callable(how) else _propagate_with(how)


def _propagate_with(options: Mapping[str, Any]) -> Callable[..., Any]:
    """`propagate` with options that override those of the call."""

    def method(*args: Any, **given: Any) -> Any:
        return propagate(*args, **{"covariance": False, **given, **options})

    return method
