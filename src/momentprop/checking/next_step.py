"""The next step: the method to use, or the first that has not been compared, with the line to write."""

from collections.abc import Sequence
from dataclasses import dataclass

from momentprop.checking.methods import CALIBRATED, FEW_PROBES, JOINT, JOINT_CALIBRATED, PLAIN_AP2, PROBES
from momentprop.checking.results import Results

FINE = 0.1
"""The relative error of one deviation, and the error of the means in deviations, up to which a method will do."""


@dataclass(frozen=True)
class Step:
    """What to do: `ap2`, `covariance`, `probes`, `calibrate` or `sample`, and the code for it.

    `is_measured` tells whether the report has compared it and found it right; otherwise it is one to try.
    """

    name: str
    code: str
    is_measured: bool


def step(report: Results) -> Step | None:
    """The next step, or None if no method here tells deviations, or the right one is the user's own.

    Methods that need no calibration come first, cheap before expensive. After AP2 comes following correlations, then
    probes, which correct the inside without a fit, then a calibration, and finally draws.
    """
    told = [name for name in report.methods if report.at_output(name).rms_log_std is not None]
    if not told:
        return None
    good = [name for name in simplest_first(report, told) if is_right(report, name)]
    if good:
        name = _step_of(good[0])
        return None if name is None else Step(name, _code(report, name, good[0]), True)
    tried = {_step_of(name) for name in report.methods}
    if any(note.startswith(f"{JOINT} ") for note in report.notes):
        tried.add("covariance")  # which cannot run here
    for name in ("covariance", "probes", "calibrate"):
        if name not in tried:
            return Step(name, _code(report, name), False)
    return Step("sample", _code(report, "sample"), True)


def is_right(report: Results, name: str) -> bool:
    """Whether the means and the deviations by a method will do, as far as the draws can tell."""
    found, floor = report.at_output(name), report.floor_at_output
    return is_fine(found.rms_log_std, floor.rms_log_std) and is_fine(found.eps_mean, floor.eps_mean)


def is_fine(error: float | None, floor: float | None) -> bool:
    """Whether an error is small, or no more than a perfect method might show."""
    return error is not None and error <= max(FINE, 1.5 * (floor or 0.0))


def simplest_first(report: Results, names: Sequence[str]) -> list[str]:
    """The methods in the order of their cost, those that need no calibration first."""
    return sorted(names, key=lambda name: (name in (CALIBRATED, JOINT_CALIBRATED), report.cost[name].measured))


def _step_of(method: str) -> str | None:
    if method in PLAIN_AP2:
        return "ap2"
    if method.partition("-")[0] == PROBES:
        return "probes"
    return {JOINT: "covariance", CALIBRATED: "calibrate", JOINT_CALIBRATED: "calibrate"}.get(method)


def _code(report: Results, name: str, method: str = "") -> str:
    options = {
        "ap2": "covariance=False",
        "covariance": "covariance=True",
        "probes": f"probes={method.partition('-')[2] or FEW_PROBES}",
        "calibrate": f"calibration=calibration, covariance={method == JOINT_CALIBRATED}",
        "sample": f'method="sample", samples={report.samples}',
    }
    line = f"y = momentprop.propagate({report.given}, {options[name]})"
    if name != "calibrate":
        return line
    return f"calibration = momentprop.calibrate({_for_calibrate(report.given)})\n{line}"


def _for_calibrate(given: str) -> str:
    """The arguments of `calibrate`, which takes batches where `propagate` takes arguments and keywords."""
    for written, instead in (
        ("model, **kwargs", "model, [kwargs]"),  # a dictionary is a batch of keywords
        ("x, **kwargs", "batches"),
        ("*args, **kwargs", "batches"),
        ("*args", "batches"),
        ("x, input_covariance=input_covariance", "momentprop.Joint.from_covariance(x, input_covariance)"),
    ):
        if written in given:
            return given.replace(written, instead)
    return given
