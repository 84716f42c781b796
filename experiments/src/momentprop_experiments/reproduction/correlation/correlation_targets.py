"""The targets of the methods that follow correlations, and which of them are reached."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from momentprop.checking.formatting import number
from momentprop_experiments.reproduction.correlation.correlation_cases import CASES

Range = tuple[float, float]
Data = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A figure of a method that should lie in a range, in each of some cases; a second range would be even better."""

    what: str
    cases: tuple[str, ...]
    method: str
    figure: str
    target: Range
    stretch: Range | None = None
    better: str | None = None  # another method for the second range
    relative_to: str | None = None  # the figure is divided by that of this method


@dataclass(frozen=True)
class Verdict:
    """The findings for a target: the values by case, and the cases that miss each range."""

    found: dict[str, float]
    missed: list[str]
    further: dict[str, float]
    missed_further: list[str]


def _variance(name: str) -> float:
    given = CASES[name].variance
    return max(given) if isinstance(given, tuple) else given or 0.0


_JUDGED = tuple(name for name in CASES if name not in ("digits-maxima", "mlp-16"))
SMALL_NOISE = tuple(name for name in _JUDGED if _variance(name) < 0.1)
"""Small noise, dropout and Bernoulli units."""
LARGER_NOISE = tuple(name for name in _JUDGED if _variance(name) >= 0.1)
_WITH_CLASSES = tuple(name for name in CASES if CASES[name].classes)


def _most(limit: float) -> Range:
    return (-1.0, limit)


TARGETS = (
    Target("σ, small noise", SMALL_NOISE, "joint", "sigma", (0.95, 1.07), (0.98, 1.02), "probes16"),
    Target("rms log σ, small noise", SMALL_NOISE, "joint", "rms", _most(0.09), _most(0.03), "probes16"),
    Target("σ, larger noise", LARGER_NOISE, "probes64", "sigma", (0.92, 1.06), (0.97, 1.03)),
    Target("rms log σ, larger noise", LARGER_NOISE, "probes64", "rms", _most(0.13), _most(0.05)),
    Target("rms log σ, CIFAR", ("cifar-lrelu-0.01", "cifar-dropout"), "calibrated-joint", "rms", _most(0.025)),
    Target("rms log σ, CIFAR, Bernoulli", ("cifar-bernoulli",), "calibrated-joint", "rms", _most(0.02)),
    Target("eps_mean, CIFAR, 0.01", ("cifar-lrelu-0.01",), "probes64", "eps_mean", _most(0.04), _most(0.025)),
    Target("eps_mean, ResNet-18, 0.01", ("narrow-0.01",), "probes64", "eps_mean", _most(0.025), _most(0.025)),
    Target("eps_mean, ViT, 0.01", ("vit-0.01",), "probes64", "eps_mean", _most(0.045), _most(0.025)),
    Target("eps_mean, ViT, 0.1, dropout", ("vit-0.1", "vit-dropout"), "probes64", "eps_mean", _most(0.1), _most(0.025)),
    Target("KL over that of AP2", _WITH_CLASSES, "probes64", "kl", _most(0.2), relative_to="ap2"),
    Target("KL over that of AP2", _WITH_CLASSES, "joint", "kl", _most(1.0), relative_to="ap2"),
    Target("KL over that of true moments", _WITH_CLASSES, "probes64", "kl", _most(2.0), relative_to="true"),
    Target("KL over that of AP2", ("lenet-dropout",), "calibrated-joint", "kl", _most(0.05), relative_to="ap2"),
    Target("eps_mean, maxima", ("digits-maxima",), "probes64", "eps_mean", _most(0.2), _most(0.05)),
    Target("eps_mean, MLP 16-64-64-10", ("mlp-16",), "full", "eps_mean", _most(0.009)),
    Target("σ, MLP 16-64-64-10", ("mlp-16",), "full", "sigma", (0.99, 1.01)),
    Target("cost over AP2 and backward passes", _WITH_CLASSES, "joint", "cost", _most(1.2), relative_to="bound"),
)
"""All targets but that of the random networks."""


def judged(target: Target, data: Data) -> Verdict:
    """Compare what was measured with a target."""
    found = _values(target, data, target.method)
    further = _values(target, data, target.better or target.method) if target.stretch else {}
    return Verdict(
        found, _outside(found, target.target), further, _outside(further, target.stretch) if target.stretch else []
    )


def _values(target: Target, data: Data, method: str) -> dict[str, float]:
    known = {name: data["cases"][name] for name in target.cases if name in data["cases"]}
    found = {name: _value(case, method, target) for name, case in known.items()}
    return {name: value for name, value in found.items() if value is not None}


def _value(case: Data, method: str, target: Target) -> float | None:
    found = figure(case, method, target.figure)
    if target.relative_to is None or found is None:
        return found
    other = case["bound"] if target.relative_to == "bound" else figure(case, target.relative_to, target.figure)
    return found / other if other and other > 0 else None  # a divergence below its error may come out negative


def figure(case: Data, method: str, name: str) -> float | None:
    """Return a figure of a method, without its error."""
    found: float | list[float | None] | None = case["methods"].get(method, {}).get(name)
    return found[0] if isinstance(found, list) else found


def _outside(found: Mapping[str, float], limits: Range) -> list[str]:
    return [name for name, value in found.items() if not limits[0] <= value <= limits[1]]


def told(limits: Range) -> str:
    """Write a range."""
    return f"≤ {limits[1]:g}" if limits[0] < 0 else f"{limits[0]:g} … {limits[1]:g}"


def span(found: Mapping[str, float]) -> str:
    """Write the least and the greatest value."""
    if not found:
        return "not measured"
    least, most = min(found.values()), max(found.values())
    return number(least, 3) if least == most else f"{number(least, 3)} … {number(most, 3)}"
