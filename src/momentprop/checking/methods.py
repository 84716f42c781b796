"""The methods to compare, each a function with the interface of `propagate`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from momentprop.propagate import propagate
from momentprop.values import Joint
from momentprop.values.structures import leaves_of

JOINT = "joint"
"""The name of AP2 that follows correlations."""

CALIBRATED = "ap2-calibrated"
"""The name of AP2 with a calibration."""

JOINT_CALIBRATED = "joint-calibrated"
"""The name of AP2 with a calibration that follows correlations."""

PLAIN_AP2 = ("ap2", "ap2-normal")
"""The names of AP2 with independent normal units."""

PROBES = "probes"
"""The name of AP2 with probes; `probes-64` has 64 of them."""

FEW_PROBES = 16
"""The number of probes of `"probes"`."""

DEFAULT = ("ap1", "ap2", JOINT)
"""The methods that are compared by default."""

Method = str | tuple[str, Mapping[str, Any] | Callable[..., Any]]
"""A name; or a name with options for `propagate`, or with a function that takes and returns what `propagate` does."""


@dataclass(frozen=True)
class Compared:
    """A method to compare: what it runs, where it has values of its own, and what it costs nominally."""

    run: Callable[..., Any]
    everywhere: bool = True  # or else at the final output only
    follows: bool = False  # it has the covariance of the final output, which must have few units for each input
    if_wide: "Compared | None" = None  # what replaces it if there are too many
    only: str | None = None  # the name of the one output, among several, that it is run on
    optional: bool = False  # if it cannot run on a model, it is left out
    passes: int | None = None  # nominal cost in forward passes; None for a user's own method
    passes_per_unit: int = 0  # further ones for every unit of the final output

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Run the method and finish it: a covariance on request is computed."""
        result = self.run(*args, **given)
        for leaf in leaves_of(result):
            if isinstance(leaf, Joint):
                leaf.covariance  # noqa: B018
        return result

    def cost(self, units: int) -> int | None:
        """The nominal cost in forward passes, for this number of output units per input."""
        return None if self.passes is None else self.passes + self.passes_per_unit * units


def functions(methods: Sequence[Method] | None, calibration: Any = None) -> dict[str, Compared]:
    """The methods by name; for None, those of `DEFAULT`, without `"joint"` where it cannot run.

    A calibration adds calibrated AP2, and its joint form if `"joint"` is among the methods.
    """
    if methods is None:
        found = functions(DEFAULT, calibration)
        return {name: dataclasses.replace(method, optional=method.follows) for name, method in found.items()}
    if isinstance(methods, str):
        raise TypeError(f"methods must be a sequence: write `methods=({methods!r},)`")
    listed = [_named(method) for method in methods]
    if calibration is not None:
        listed.append((CALIBRATED, _ap2(calibration=calibration)))
        if JOINT in methods:
            listed.append((JOINT_CALIBRATED, _following(2, covariance=True, calibration=calibration)))
    if not listed or len(dict(listed)) < len(listed):
        raise ValueError("give at least one method, each with its own name")
    return dict(listed)


def _named(method: Method) -> tuple[str, Compared]:
    if isinstance(method, str):
        return method, _known(method)
    name, how = method
    return name, Compared(how if callable(how) else _propagate_with(how))


def _known(name: str) -> Compared:
    kind, dash, count = name.partition("-")
    if kind == PROBES and (not dash or (count.isdecimal() and int(count))):
        return _with_probes(int(count or FEW_PROBES))
    if name not in _BY_NAME:
        known = ", ".join(map(repr, (*_BY_NAME, PROBES)))
        raise ValueError(f"unknown method {name!r}: choose from {known}, or give a name with options, as a pair")
    return _BY_NAME[name]


def _propagate_with(options: Mapping[str, Any]) -> Callable[..., Any]:
    """`propagate` with options that override those of the call."""

    def method(*args: Any, **given: Any) -> Any:
        return propagate(*args, **{"covariance": False, **given, **options})

    return method


def _ap2(**options: Any) -> Compared:
    return Compared(_propagate_with({"covariance": False, **options}), passes=2)


def _following(passes: int, **options: Any) -> Compared:
    """A method with this cost in forward passes, plus a backward pass for every unit of the output."""
    return Compared(_propagate_with(options), everywhere=False, follows=True, passes=passes, passes_per_unit=1)


def _with_probes(count: int) -> Compared:
    wide = Compared(_propagate_with({"probes": count, "covariance": False}), passes=2 + count)
    run = _propagate_with({"probes": count, "covariance": True})
    return Compared(run, follows=True, if_wide=wide, passes=2 + count, passes_per_unit=1)


_BY_NAME: dict[str, Compared] = {
    "ap1": Compared(_propagate_with({"method": "ap1"}), passes=1),
    "ap2": _ap2(),
    "ap2-normal": _ap2(family="normal"),
    "ap2-logistic": _ap2(family="logistic"),
    "ap2-fitted": _ap2(family="fitted"),
    JOINT: _following(2, covariance=True),
    "linear": _following(1, method="linear", covariance=True),
    "full": Compared(_propagate_with({"method": "full", "covariance": True}), everywhere=False, follows=True),
}
