"""What to do next: a few sentences, based on the figures at the output."""

import math
from collections.abc import Callable, Sequence

from momentprop.checking.formatting import number, off_by, worth
from momentprop.checking.methods import CALIBRATED, FEW_PROBES, JOINT, JOINT_CALIBRATED, PROBES
from momentprop.checking.next_step import is_fine, simplest_first
from momentprop.checking.results import Results

FINE_CLASSES = 1e-3
"""The divergence of class probabilities in nats below which no closer method is sought."""

_OPTIONS = {
    "ap1": 'method="ap1"',
    "ap2": "covariance=False",
    "ap2-normal": "covariance=False",
    "ap2-logistic": 'family="logistic", covariance=False',
    "ap2-fitted": 'family="fitted", covariance=False',
    "linear": 'method="linear"',
    "full": 'method="full"',
    JOINT: "covariance=True",
    CALIBRATED: "calibration=..., covariance=False",
    JOINT_CALIBRATED: "calibration=..., covariance=True",
}


def sentences(report: Results, quote: Callable[[str], str] = str) -> list[str]:
    """What to do next; `quote` escapes the user's names."""
    told = [name for name in report.methods if report.at_output(name).rms_log_std is not None]
    if not told:
        return _without_deviations(report, quote)
    name, found = _of_deviations(report, told, quote)
    to_try = _to_try(report)
    means = _of_means(report, name, quote)
    found += [each.removesuffix(to_try) for each in means] if found[0].endswith(to_try) else means  # once is enough
    found += _of_classes(report, name, quote)
    return found + _of_draws(report, name)


def _without_deviations(report: Results, quote: Callable[[str], str]) -> list[str]:
    if report.posterior is None:
        return ['No method here gives deviations: compare `methods=("ap2", "joint")`.']
    best = min(report.posterior.methods, key=lambda name: _divergence(report, name))
    return [
        f"Use {_how(best, quote)}: its class probabilities are the closest to those of the draws "
        f"({number(_divergence(report, best))} nats, {_cost(report, best)})."
    ]


def _of_deviations(report: Results, told: Sequence[str], quote: Callable[[str], str]) -> tuple[str, list[str]]:
    """The method to use, and why."""
    first = told[0]
    floor = report.floor_at_output.rms_log_std
    good = [name for name in simplest_first(report, told) if is_fine(_rms(report, name), floor)]
    if first in good:
        return first, [
            f"The deviations by {quote(first)} are close ({_factor(report, first)}): use {_how(first, quote)}, which "
            f"costs {_passes(report, first)}."
        ]
    wrong = f"The deviations by {quote(first)} are {_off(report, first)}"
    if good:
        best = good[0]
        cheaper = min(good, key=lambda name: report.cost[name].measured)
        also = f" For {_passes(report, cheaper)}, {_how(cheaper, quote)} has {_factor(report, cheaper)}."
        return best, [
            f"{wrong}; use {_how(best, quote)} ({_factor(report, best)}, {_cost(report, best)})."
            + (also if cheaper != best else "")
        ]
    best = min(told, key=lambda name: _rms(report, name))
    if best == first:
        return best, [f"{wrong}, and no method here is better.{_to_try(report)}"]
    return best, [
        f"{wrong}. Those of {_how(best, quote)} are better ({_factor(report, best)}, {_cost(report, best)}), but each "
        f"is still off by {off_by(_rms(report, best))}.{_to_try(report)}"
    ]


def _of_means(report: Results, name: str, quote: Callable[[str], str]) -> list[str]:
    error = report.at_output(name).eps_mean
    if error is None or is_fine(error, report.floor_at_output.eps_mean):
        return []
    errors = {other: report.at_output(other).eps_mean for other in report.methods}
    best = min((x, other) for other, x in errors.items() if x is not None)[1]
    if best != name and (errors[best] or 0.0) < error / 2:
        better = f"those of {_how(best, quote)} by {number(errors[best])} ({_cost(report, best)})"
        both = _to_try(report) if report.at_output(best).rms_log_std is None else ""  # AP1 has no deviations
        return [f"Its means are off by {number(error)} deviations, {better}.{both}"]
    return [f"Its means are off by {number(error)} deviations.{_to_try(report)}"]


def _of_classes(report: Results, name: str, quote: Callable[[str], str]) -> list[str]:
    if report.posterior is None or name not in report.posterior.methods:
        return []
    closest = min(_divergence(report, other) for other in report.posterior.methods)
    close = [other for other in report.posterior.methods if _divergence(report, other) <= 2 * closest]
    best = simplest_first(report, close)[0]
    here, there = _divergence(report, name), _divergence(report, best)
    if here - there < max(here / 2, report.posterior.floor, FINE_CLASSES):
        return []
    return [
        f"For class probabilities use {_how(best, quote)}: they are {number(there)} nats from those of the draws, not "
        f"{number(here)} ({_cost(report, best)})."
    ]


def _of_draws(report: Results, name: str) -> list[str]:
    found = report.at_output(name)
    if found.worth_std is None or found.worth_mean is None or min(found.worth_std, found.worth_mean) < report.samples:
        return []
    return [
        f"It has the error of {worth(report.samples, report.samples)} draws: a larger `samples` shows what is left."
    ]


def _to_try(report: Results) -> str:
    """What has not been compared yet and may help."""
    more = []
    if not any(name == JOINT for name in report.methods) and not report.notes:
        more.append('`"joint"` (`covariance=True`) follows correlations')
    if not any(name.startswith(PROBES) for name in report.methods):
        more.append(f'`"probes"` (`probes={FEW_PROBES}`) corrects the variances inside, without a fit')
    if CALIBRATED not in report.methods:
        more.append("`momentprop.calibrate` fits corrections to a few inputs")
    return f" Compare what may help: {'; '.join(more)}." if more else ""


def _how(name: str, quote: Callable[[str], str]) -> str:
    """What to write to get a method."""
    if name.partition("-")[0] == PROBES:
        return f"`probes={name.partition('-')[2] or FEW_PROBES}`"
    return f"`{_OPTIONS[name]}`" if name in _OPTIONS else quote(name)


def _cost(report: Results, name: str) -> str:
    return f"at the cost of {_passes(report, name)}"


def _passes(report: Results, name: str) -> str:
    return f"{number(report.cost[name].measured)} forward passes"


def _factor(report: Results, name: str) -> str:
    return f"×{number(report.at_output(name).eps_std, 3)}"


def _off(report: Results, name: str) -> str:
    """How far deviations are off: by a common factor, or each by itself."""
    factor, rms = report.at_output(name).eps_std, _rms(report, name)
    if factor is not None and abs(math.log(factor)) > rms / 2:
        return f"{_factor(report, name)} of the true ones"
    return f"right on average ({_factor(report, name)}), but each off by {off_by(rms)}"


def _rms(report: Results, name: str) -> float:
    found = report.at_output(name).rms_log_std
    assert found is not None
    return found


def _divergence(report: Results, name: str) -> float:
    """The divergence of the best posterior of a method."""
    assert report.posterior is not None
    return min(report.posterior.methods[name].values())
