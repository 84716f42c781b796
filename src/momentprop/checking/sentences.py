"""The result of a check in plain sentences."""

from collections.abc import Callable, Mapping

from momentprop.checking.culprit import OFF
from momentprop.checking.formatting import factor, number, percent, worth
from momentprop.checking.methods import CALIBRATED, JOINT, JOINT_CALIBRATED
from momentprop.checking.results import Results
from momentprop.markdown import code

_OTHERS = (JOINT, CALIBRATED, JOINT_CALIBRATED)  # the summary has a sentence on each


def summary(report: Results, quote: Callable[[str], str] = str) -> str:
    """The result in plain sentences; `quote` escapes the user's names."""
    name = report.chief
    parts = [_of_means(report, name, quote), _of_deviations(report, name), _of_classes(report, name)]
    parts.append(_of_culprit(report, name, quote))
    parts += [_of_other(report, other) for other in report.methods if other in _OTHERS and other != name]
    return " ".join(part for part in parts if part)


def _of_other(report: Results, name: str) -> str:
    """A sentence on a method other than the main one."""
    found, floor = report.at_output(name), report.floor_at_output
    if found.eps_mean is None or found.eps_std is None or floor.eps_std is None:
        return ""
    deviations = f"the deviations are {factor(found.eps_std, floor.eps_std)}"
    if name == CALIBRATED:
        return f"By {name}, the means are off by {number(found.eps_mean)} standard deviations, and {deviations}."
    classes = ""
    if report.posterior is not None and name in report.posterior.methods:
        classes = f", and the class probabilities {number(best(report.posterior.methods[name])[1])} nats off"
    return f"By {name}, which follows correlations, {deviations}{classes}."


def _of_means(report: Results, name: str, quote: Callable[[str], str]) -> str:
    found, floor = report.at_output(name), report.floor_at_output
    if found.eps_mean is None:
        return ""
    others = [
        f"{quote(other)}: {number(report.at_output(other).eps_mean)}" for other in report.methods if other != name
    ]
    return (
        f"At the output, the means by {quote(name)} are off by {number(found.eps_mean)} standard deviations "
        f"({'; '.join([*others, f'the floor of {report.samples:,} draws: {number(floor.eps_mean)}'])}). "
        f"That is the error of {worth(found.worth_mean, report.samples)} Monte Carlo samples, for the price of "
        f"{number(report.cost[name].measured)} forward passes."
    )


def _of_deviations(report: Results, name: str) -> str:
    found, floor = report.at_output(name), report.floor_at_output
    if found.eps_std is None or floor.eps_std is None:
        return ""
    covered = found.coverage.get("90")
    return (
        f"Its standard deviations are {factor(found.eps_std, floor.eps_std)}, each with the error of "
        f"{worth(found.worth_std, report.samples)} samples. Its 90 % intervals hold {percent(covered)} of the draws."
    )


def _of_classes(report: Results, name: str) -> str:
    if report.posterior is None or name not in report.posterior.methods:
        return ""
    figure, kl = best(report.posterior.methods[name])
    same = worth(report.posterior.worth[name][figure], report.samples)
    return (
        f"Its class probabilities are {number(kl)} nats from those of the draws ({figure}; floor: "
        f"{number(report.posterior.floor)}), the error of {same} samples."
    )


def best(divergences: Mapping[str, float]) -> tuple[str, float]:
    """The posterior of a method closest to the draws, with its divergence."""
    return min(divergences.items(), key=lambda item: item[1])


def _of_culprit(report: Results, name: str, quote: Callable[[str], str]) -> str:
    """Where deviations go wrong: at an operation, or as far as is known at a module."""
    off, guilty = report.first_off(name, OFF), report.culprit
    if off is None:
        return ""
    if guilty is not None:
        return (
            f"Its deviations go wrong at {code(guilty.operation)} in {quote(guilty.place)}: before it they are "
            f"×{number(guilty.before, 3)} of the true ones, after it ×{number(guilty.after, 3)}."
        )
    where = f"{code(off)}, a {quote(report[off].type)}"
    if not report[off].acts:
        return f"Its deviations are off by more than {percent(OFF)} before {where} that does nothing here."
    return f"The first module where its deviations are off by more than {percent(OFF)} is {where}."
