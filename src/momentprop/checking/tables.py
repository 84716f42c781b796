"""The result of a check in tables: heads and rows of text."""

from collections.abc import Callable

from momentprop.checking.formatting import NONE, number, percent, worth
from momentprop.checking.results import ModuleAccuracy, Results

Table = tuple[list[str], list[list[str]]]


def tells_deviations(module: ModuleAccuracy, method: str) -> bool:
    """Whether a method gives standard deviations at a module."""
    return module.methods.get(method, module.floor).eps_std is not None and method in module.methods


def means(report: Results, quote: Callable[[str], str]) -> Table:
    """The error of the means of every module."""
    head = ["module", "type", "units", "do not vary", *map(quote, report.methods), "floor"]
    rows = []
    for path, module in report.rows.items():
        errors = [number(module.methods[name].eps_mean) if name in module.methods else NONE for name in report.methods]
        rows.append(
            [quote(path), quote(module.type), counted(module), str(module.zero), *errors, number(module.floor.eps_mean)]
        )
    return head, rows


def counted(module: ModuleAccuracy) -> str:
    """The number of units, and how many of them were measured."""
    return f"{module.total:,}" if module.units == module.total else f"{module.units:,} of {module.total:,}"


def deviations(report: Results, name: str, quote: Callable[[str], str]) -> Table:
    """All figures of a method's deviations at every module."""
    head = ["module", "eps_std", "floor", "rms_log_std", "floor", "correlation", "best", "50 %", "90 %", "99 %", "zero"]
    rows = []
    for path, module in report.rows.items():
        if tells_deviations(module, name):
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


def at_output(report: Results, quote: Callable[[str], str]) -> Table:
    """The cost of each method, and its worth at the output."""
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
