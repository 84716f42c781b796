"""The result of a check in tables: heads and rows of text."""

from collections.abc import Callable

from momentprop.checking.formatting import NONE, number, percent, spread, worth
from momentprop.checking.results import Accuracy, ModuleAccuracy, Results

Table = tuple[list[str], list[list[str]]]


def tells_deviations(module: ModuleAccuracy, method: str) -> bool:
    """Whether a method gives standard deviations at a module."""
    return module.methods.get(method, module.floor).eps_std is not None and method in module.methods


def tells_layers(report: Results, method: str) -> bool:
    """Whether a method gives standard deviations elsewhere than at the final output, or there is nothing else."""
    return _tells(report, "eps_std", method)


def summary(report: Results, quote: Callable[[str], str]) -> Table:
    """What matters at the output: a row for each method, and one for what an exact method would show."""
    floor, posterior = report.floor_at_output, report.posterior
    head = ["method", "means off", "spread", "each off", "90 %", "passes"]
    rows = [
        [quote(name), *_at_a_glance(report.at_output(name)), number(report.cost[name].measured)]
        for name in report.methods
    ]
    noise = [NONE if floor.eps_std is None else f"×÷{number(floor.eps_std, 3)}", spread(floor.rms_log_std)]
    held = f"±{percent(floor.coverage['90'])}" if floor.coverage else NONE
    rows.append([NOISE, number(floor.eps_mean), *noise, held, NONE])
    if posterior is not None:
        head.insert(-1, "classes")
        off = [min(posterior.methods.get(name, {}).values(), default=None) for name in report.methods]
        for row, divergence in zip(rows, [*off, posterior.floor], strict=True):
            row.insert(-1, number(divergence))
    return head, rows


NOISE = "noise of draws"
"""The row of what an exact method would show, because the draws are finite."""


def _at_a_glance(found: Accuracy) -> list[str]:
    factor = NONE if found.eps_std is None else f"×{number(found.eps_std)}"
    return [number(found.eps_mean), factor, spread(found.rms_log_std), percent(found.coverage.get("90"))]


def legend(report: Results) -> dict[str, str]:
    """What the columns of the summary mean, and its last row."""
    said = {
        "means off": "how far the means are off, in standard deviations; 0 is exact",
        "spread": "the standard deviations over the true ones; ×1 is exact, less is overconfident",
        "each off": "how far a single standard deviation is off; ×÷2 is half or twice the true one",
        "90 %": "how many draws lie inside the 90 % intervals",
        "classes": "how far the class probabilities are off (a divergence, in nats); 0 is exact. For a "
        "regression write `classes=None`",
        "passes": "the price, in passes of the plain network; in a small network most of it is Python",
        NOISE: f"what an exact method would show, because {report.samples:,} draws have errors of their own",
    }
    shown = [*summary(report, str)[0], NOISE]
    return {name: meaning for name, meaning in said.items() if name in shown}


def by_module(report: Results, figure: str, quote: Callable[[str], str]) -> Table:
    """A figure at every module, for the methods that have it elsewhere than at the output."""
    told = [name for name in report.methods if _tells(report, figure, name)]
    head = ["module", "type", *map(quote, told), NOISE]
    rows = []
    for path, module in report.rows.items():
        found = [getattr(module.methods.get(name), figure, None) for name in told]
        if any(x is not None for x in found):
            noise = _factor(module.floor) if figure == "eps_std" else number(getattr(module.floor, figure))
            rows.append([quote(path), quote(module.type), *map(number, found), noise])
    return head, rows


def _tells(report: Results, figure: str, name: str) -> bool:
    """Whether a method has a figure elsewhere than at the final output, or there is nothing else."""
    told = [path for path, module in report.rows.items() if getattr(module.methods.get(name), figure, None) is not None]
    return bool(told) and (told != [report.output] or len(report.rows) == 1)


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
                    _factor(floor),
                    *map(number, (found.rms_log_std, floor.rms_log_std, found.correlation, floor.correlation)),
                    *(percent(found.coverage[level]) for level in ("50", "90", "99")),
                    str(found.zero),
                ]
            )
    return head, rows


def at_output(report: Results, quote: Callable[[str], str]) -> Table:
    """The cost of each method, and its accuracy and worth at the output."""
    found, floor = {name: report.at_output(name) for name in report.methods}, report.floor_at_output
    told = list(found.values())
    rows = [
        ["forward passes, measured", *(number(report.cost[name].measured) for name in found), NONE],
        ["forward passes, nominal", *(str(report.cost[name].nominal or NONE) for name in found), NONE],
        ["eps_mean", *(number(each.eps_mean) for each in told), number(floor.eps_mean)],
        ["eps_mean: worth draws", *(worth(each.worth_mean, report.samples) for each in told), NONE],
        ["eps_std", *(number(each.eps_std, 3) for each in told), _factor(floor)],
        ["rms_log_std", *(number(each.rms_log_std) for each in told), number(floor.rms_log_std)],
        ["rms_log_std: worth draws", *(worth(each.worth_std, report.samples) for each in told), NONE],
    ]
    if floor.correlation_error is not None:
        errors = (number(each.correlation_error) for each in told)
        rows.append(["correlation_error", *errors, number(floor.correlation_error)])
    if floor.coverage:
        held = (percent(each.coverage.get("90")) for each in told)
        rows.append(["90 % intervals hold", *held, f"±{percent(floor.coverage['90'])}"])
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


def _factor(floor: Accuracy) -> str:
    return NONE if floor.eps_std is None else f"×÷{number(floor.eps_std, 3)}"
