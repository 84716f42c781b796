"""A report in words and tables."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from momentprop.markdown import table

if TYPE_CHECKING:
    from momentprop.checking.report import Module, Report

CALIBRATED = "ap2-calibrated"
"""The name of AP2 with a calibration."""

NONE = "–"
_OFF = 0.2  # the relative error of deviations from which on a module is named


def number(x: float | None, digits: int = 2) -> str:
    """A number to a few significant digits: 0.083, 12, 3.4e-05.

    >>> [number(x) for x in (0.08312, 1.0, 12.3, 0.0000341, 0, None)]
    ['0.083', '1.0', '12', '3.4e-05', '0', '–']
    """
    if x is None:
        return NONE
    if x == 0:
        return "0"
    if 1e-3 <= abs(x) < 10**digits:
        return f"{x:#.{digits}g}".rstrip(".")
    return f"{x:,.0f}" if 1 <= abs(x) < 1e6 else f"{x:.{digits - 1}e}"


def percent(share: float | None) -> str:
    """A share in per cent."""
    return NONE if share is None else f"{100 * share:.0f} %" if 0.1 <= share <= 0.9 else f"{100 * share:.1f} %"


def worth(count: float | None, samples: int) -> str:
    """A number of draws: `95`, or `more than 1,000` where the draws cannot tell.

    >>> worth(95.3, 1000), worth(1000, 1000), worth(0.2, 1000)
    ('95', 'more than 1,000', 'less than 1')
    """
    if count is None:
        return NONE
    if count >= samples:
        return f"more than {samples:,}"
    return "less than 1" if count < 1 else f"{count:.2g}" if count < 10 else f"{count:,.0f}"


def brief_worth(count: float | None, samples: int) -> str:
    """The same with signs in the place of words."""
    return worth(count, samples).replace("more than ", "> ").replace("less than ", "< ")


def factor(x: float, floor: float) -> str:
    """A factor of standard deviations as part of a sentence.

    >>> factor(0.69, 1.02), factor(1.01, 1.02), factor(3.0, 1.02)
    ('underestimated by 31 %', 'right, as far as the draws can tell', '3.0 times too large')
    """
    if 1 / floor <= x <= floor:
        return "right, as far as the draws can tell"
    if x < 1:
        return f"underestimated by {percent(1 - x)}" if x > 0.5 else f"{number(1 / x)} times too small"
    return f"overestimated by {percent(x - 1)}" if x < 2 else f"{number(x)} times too large"


def summary(report: "Report") -> list[str]:
    """What the report says, in plain sentences."""
    name = report.chief
    parts = [_of_means(report, name), _of_deviations(report, name), _of_classes(report, name)]
    off = _first_off(report, name)
    if off is not None:
        where = f"`{off}`, a {report[off].type}"
        parts.append(f"The first module where its deviations are off by more than {percent(_OFF)} is {where}.")
    parts += [_of_other(report, other) for other in report.methods if other == CALIBRATED != name]
    return [part for part in parts if part]


def _of_other(report: "Report", name: str) -> str:
    """A sentence on a method that the summary is not about."""
    found, floor = report.at_output(name), report.floor_at_output
    if found.eps_mean is None or found.eps_std is None or floor.eps_std is None:
        return ""
    return (
        f"By {name}, the means are off by {number(found.eps_mean)} standard deviations, and the deviations are "
        f"{factor(found.eps_std, floor.eps_std)}."
    )


def _of_means(report: "Report", name: str) -> str:
    found, floor = report.at_output(name), report.floor_at_output
    if found.eps_mean is None:
        return ""
    others = [f"{other}: {number(report.at_output(other).eps_mean)}" for other in report.methods if other != name]
    return (
        f"At the output, the means by {name} are off by {number(found.eps_mean)} standard deviations "
        f"({'; '.join([*others, f'the floor of {report.samples:,} draws: {number(floor.eps_mean)}'])}). "
        f"That is the error of {worth(found.worth_mean, report.samples)} Monte Carlo samples, for the price of "
        f"{number(report.cost[name].measured)} forward passes."
    )


def _of_deviations(report: "Report", name: str) -> str:
    found, floor = report.at_output(name), report.floor_at_output
    if found.eps_std is None or floor.eps_std is None:
        return ""
    covered = found.coverage.get("90")
    return (
        f"Its standard deviations are {factor(found.eps_std, floor.eps_std)}, "
        f"and its 90 % intervals hold {percent(covered)} of the draws."
    )


def _of_classes(report: "Report", name: str) -> str:
    if report.posterior is None or name not in report.posterior.methods:
        return ""
    figure, kl = best(report.posterior.methods[name])
    return (
        f"Its class probabilities are {number(kl)} nats from those of the draws ({figure}; floor: "
        f"{number(report.posterior.floor)}), as those of {worth(report.posterior.worth[name][figure], report.samples)} "
        "samples are."
    )


def best(divergences: Mapping[str, float]) -> tuple[str, float]:
    """The posterior of a method that is closest to the draws, with its divergence."""
    return min(divergences.items(), key=lambda item: item[1])


def _first_off(report: "Report", name: str) -> str | None:
    for path, module in report.rows.items():
        found = module.methods.get(name)
        if found is not None and found.eps_std is not None and not 1 - _OFF < found.eps_std < 1 / (1 - _OFF):
            return path
    return None


def text(report: "Report", quote: Callable[[str], str]) -> str:
    """The summary and all tables; `quote` makes names of the user's safe."""
    parts = [f"{quote(report.model)}: {report.inputs:,} inputs, {report.samples:,} draws, {report.seconds:.0f} s"]
    parts += [report.summary, "Error of the means, in average standard deviations (eps_mean):"]
    parts.append(table(*means(report, quote)))
    for name in report.methods:
        if any(_tells_deviations(module, name) for module in report.rows.values()):
            parts += [f"Standard deviations by {quote(name)}:", table(*deviations(report, name, quote))]
    parts += ["At the output (worth: how many draws have the same error):", table(*at_output(report, quote))]
    return "\n\n".join(parts)


Table = tuple[list[str], list[list[str]]]


def _tells_deviations(module: "Module", method: str) -> bool:
    return module.methods.get(method, module.floor).eps_std is not None and method in module.methods


def means(report: "Report", quote: Callable[[str], str]) -> Table:
    """The error of the means of every module."""
    head = ["module", "type", "units", "do not vary", *map(quote, report.methods), "floor"]
    rows = []
    for path, module in report.rows.items():
        errors = [number(module.methods[name].eps_mean) if name in module.methods else NONE for name in report.methods]
        rows.append(
            [quote(path), quote(module.type), counted(module), str(module.zero), *errors, number(module.floor.eps_mean)]
        )
    return head, rows


def counted(module: "Module") -> str:
    """How many units there are, and how many of them were measured."""
    return f"{module.total:,}" if module.units == module.total else f"{module.units:,} of {module.total:,}"


def deviations(report: "Report", name: str, quote: Callable[[str], str]) -> Table:
    """All that is told of a method's deviations at every module."""
    head = ["module", "eps_std", "floor", "rms_log_std", "floor", "correlation", "best", "50 %", "90 %", "99 %", "zero"]
    rows = []
    for path, module in report.rows.items():
        if _tells_deviations(module, name):
            found, floor = module.methods[name], module.floor
            rows.append(
                [
                    quote(path),
                    number(found.eps_std, 3),
                    f"×÷{number(floor.eps_std, 3)}",
                    *map(number, (found.rms_log_std, floor.rms_log_std, found.correlation, floor.correlation)),
                    *(percent(found.coverage[level]) for level in ("50", "90", "99")),
                    str(found.zero),
                ]
            )
    return head, rows


def at_output(report: "Report", quote: Callable[[str], str]) -> Table:
    """What each method costs, and what it is worth at the output."""
    found = {name: report.at_output(name) for name in report.methods}
    rows = [
        ["forward passes, measured", *(number(report.cost[name].measured) for name in found), NONE],
        ["forward passes, nominal", *(str(report.cost[name].nominal or NONE) for name in found), NONE],
        ["eps_mean", *(number(a.eps_mean) for a in found.values()), number(report.floor_at_output.eps_mean)],
        ["eps_mean: worth draws", *(worth(a.worth_mean, report.samples) for a in found.values()), NONE],
        ["rms_log_std", *(number(a.rms_log_std) for a in found.values()), number(report.floor_at_output.rms_log_std)],
        ["rms_log_std: worth draws", *(worth(a.worth_std, report.samples) for a in found.values()), NONE],
    ]
    for figure in report.figures_of_posterior:
        assert report.posterior is not None
        divergences, draws = report.posterior.methods, report.posterior.worth
        rows.append(
            [figure, *(number(divergences[name].get(figure)) for name in found), number(report.posterior.floor)]
        )
        rows.append(
            [f"{figure}: worth draws", *(worth(draws[name].get(figure), report.samples) for name in found), NONE]
        )
    return ["", *map(quote, report.methods), "floor"], rows


def code(name: str) -> str:
    """A name as code in a Markdown table, whatever characters it has."""
    return "`" + name.replace("`", "'").replace("|", "\\|").replace("\n", " ") + "`" if name else ""
