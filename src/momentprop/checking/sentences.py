"""The result of a check in plain sentences, one paragraph for each question."""

from collections.abc import Callable, Mapping

from momentprop.checking.culprit import OFF
from momentprop.checking.formatting import factor, number, off_by, percent, worth
from momentprop.checking.next_step import is_fine
from momentprop.checking.results import SAMPLED, Accuracy, Example, Results
from momentprop.markdown import code

WORDS = {
    "ap1": "the plain network: one pass, no deviations",
    "ap2": "means and variances in one pass; treats the units of a layer as independent",
    "joint": "AP2, and one backward pass for each output: follows what units share, and gives the covariance",
    "linear": "the plain network and its Jacobian (the delta method)",
    "full": "the covariance of all units, for small networks",
    "probes": "AP2 whose inner variances are corrected by 16 probes",
    "ap2-calibrated": "AP2, corrected layer by layer with a few draws of other inputs, once",
    "joint-calibrated": "both joint and calibrated",
}
"""What each method is, for newcomers."""


def summary(report: Results, quote: Callable[[str], str] = str) -> str:
    """The result in plain sentences; `quote` escapes the user's names."""
    return " ".join(topics(report, quote).values())


def topics(report: Results, quote: Callable[[str], str] = str) -> dict[str, str]:
    """The result by topic: what is said of the means, the deviations, the classes, and the cause."""
    said = {
        "Means": _of_means(report, quote),
        "Deviations": _of_deviations(report, quote),
        "Classes": _of_classes(report, quote),
        "Cause": _of_cause(report, quote),
    }
    return {topic: sentence for topic, sentence in said.items() if sentence}


def _of_means(report: Results, quote: Callable[[str], str]) -> str:
    name = report.chief
    found, plain = report.at_output(name), report.at_output("ap1")
    if found.eps_mean is None:
        return ""
    others = ""
    if name != "ap1" and plain.eps_mean is not None:
        others = f"; those of the plain network (ap1) by {number(plain.eps_mean)}"
    return (
        f"At the output, the means by {quote(name)} are off by {number(found.eps_mean)} standard deviations, "
        f"about as much as the means of {_draws(found.worth_mean, report)}{others}."
    )


def _of_deviations(report: Results, quote: Callable[[str], str]) -> str:
    name = report.chief
    found, floor = report.at_output(name), report.floor_at_output
    if found.eps_std is None or floor.eps_std is None:
        return ""
    told = (
        f"The standard deviations by {quote(name)} are {_judged(found, floor)}, as good as those of "
        f"{_draws(found.worth_std, report)}: its 90 % intervals hold {percent(found.coverage.get('90'))} of the draws."
    )
    judged: dict[str, list[str]] = {}
    for other in report.methods:
        if other != name and report.at_output(other).eps_std is not None:
            judged.setdefault(_judged(report.at_output(other), floor), []).append(quote(other))
    return " ".join([told, *(f"Those by {_listed(names)} are {judgement}." for judgement, names in judged.items())])


def _judged(found: Accuracy, floor: Accuracy) -> str:
    """How far deviations are off: all of them together, or each by itself."""
    ratio, rms, noise = found.eps_std, found.rms_log_std, floor.eps_std
    assert ratio is not None
    assert noise is not None
    right = 1 / noise <= ratio <= noise
    if rms is None or is_fine(rms, floor.rms_log_std) or not right:
        return factor(ratio, noise)
    return f"right on average, but each is off by {off_by(rms)}"


def _of_classes(report: Results, quote: Callable[[str], str]) -> str:
    if report.posterior is None or report.chief not in report.posterior.methods:
        return ""
    name, found = report.chief, report.posterior.methods
    figure, divergence = best(found[name])
    told = (
        f"The class probabilities by {quote(name)} are off by {number(divergence)} nats, about as "
        f"much as those of {_draws(report.posterior.worth[name][figure], report)}"
    )
    closest = min(found, key=lambda other: best(found[other])[1])
    more = "" if closest == name else f"; the closest, by {quote(closest)}, by {number(best(found[closest])[1])}"
    return f"{told}{more}."


def _draws(count: float | None, report: Results) -> str:
    told = worth(count, report.samples)
    return f"{told} draw" if told in ("1", "1.0", "less than 1") else f"{told} draws"


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def best(divergences: Mapping[str, float]) -> tuple[str, float]:
    """The posterior of a method closest to the draws, with its divergence."""
    return min(divergences.items(), key=lambda item: item[1])


def _of_cause(report: Results, quote: Callable[[str], str]) -> str:
    """Where deviations go wrong: at an operation, or as far as is known at a module."""
    name = quote(report.chief)
    off, guilty = report.first_off(report.chief, OFF), report.culprit
    if off is None:
        return ""
    if guilty is not None:
        return (
            f"The deviations by {name} go wrong at {code(guilty.operation)} in {quote(guilty.place)}: before it they "
            f"are ×{number(guilty.before, 3)} of the true ones, after it ×{number(guilty.after, 3)}."
        )
    where = f"{code(off)}, a {quote(report[off].type)}"
    if not report[off].acts:
        return f"The deviations by {name} are off by more than {percent(OFF)} before {where} that does nothing here."
    return f"The first module where the deviations by {name} are off by more than {percent(OFF)} is {where}."


def readings(report: Results, example: Example) -> dict[str, str]:
    """What the plain network, the draws and a method with deviations read in an input: classes with probabilities."""
    shown = {"the plain network": "ap1", f"{report.samples:,} draws on average": SAMPLED}
    told = [name for name in ("joint", report.chief) if name in example.probabilities and name != "ap1"]
    shown |= {f"{name}, without drawing": name for name in told[:1]}
    return {
        who: _classes(example, example.probabilities[name])
        for who, name in shown.items()
        if name in example.probabilities
    }


def _classes(example: Example, probabilities: list[float]) -> str:
    """The two likeliest classes, or one that leaves nothing for others."""
    ranked = sorted(zip(probabilities, (unit.name for unit in example.units), strict=True), reverse=True)[:2]
    told = [(share, name) for share, name in ranked if share >= 0.005 or share == ranked[0][0]]
    return ", ".join(f"{name} ({100 * share:.0f} %)" for share, name in told)
