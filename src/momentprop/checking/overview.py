"""Several reports on one page: a table that compares them, the main results of each, and links to the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from momentprop.checking import charts, formatting, html
from momentprop.checking.methods import CALIBRATED, JOINT, JOINT_CALIBRATED
from momentprop.checking.report import Report
from momentprop.checking.svg import Markup, element
from momentprop.checking.tables import Table


@dataclass(frozen=True)
class Entry:
    """A report with its title and description, and the file of its page next to the overview."""

    title: str
    about: str
    report: Report
    link: str


def save(path: Path, title: str, introduction: Sequence[str], entries: Sequence[Entry]) -> Path:
    """Write the page to a file."""
    path.write_text(page(title, introduction, entries), encoding="utf-8")
    return path


def page(title: str, introduction: Sequence[str], entries: Sequence[Entry]) -> str:
    """The whole page."""
    header = element(
        "header",
        element("p", "momentprop check", class_="over"),
        element("h1", title),
        *(element("p", html.prose(paragraph), class_="summary") for paragraph in introduction),
        html.table(comparison(entries)),
    )
    return html.document(title, header, *map(_section, entries))


def comparison(entries: Sequence[Entry]) -> Table:
    """The figures at the output, one row per report: AP1, the main method, and others that are present.

    The means of a joint method are those of the method without correlations, and not repeated.
    """
    present = {name for entry in entries for name in entry.report.methods}
    others = {name: label for name, label in _LABELS.items() if name in present}
    alone = {name: label for name, label in others.items() if name == CALIBRATED}
    head = ["at the output", "means off by: AP1", "AP2", *alone.values(), "floor", "deviations: AP2", *others.values()]
    head += ["90 % intervals hold: AP2", *others.values(), "classes off by: AP1", "AP2", *others.values()]
    head += ["worth draws: AP2", *alone.values(), "passes: AP2", *others.values()]
    return head, [[entry.title, *_figures(entry.report, list(alone), list(others))] for entry in entries]


_LABELS = {JOINT: "joint", CALIBRATED: "calibrated", JOINT_CALIBRATED: "calibrated, joint"}


def _figures(report: Report, alone: Sequence[str], others: Sequence[str]) -> list[str]:
    of_means = [report.at_output(name) for name in (report.chief, *alone)]
    found = [report.at_output(name) for name in (report.chief, *others)]
    divergences = report.posterior.methods if report.posterior is not None else {}
    return [
        *(formatting.number(each.eps_mean) for each in (report.at_output("ap1"), *of_means, report.floor_at_output)),
        *("× " + formatting.number(each.eps_std) for each in found),
        *(formatting.percent(each.coverage.get("90")) for each in found),
        *(formatting.number(min(divergences[each].values(), default=None)) if each in divergences else formatting.NONE
          for each in ("ap1", report.chief, *others)),
        *(formatting.brief_worth(each.worth_mean, report.samples) for each in of_means),
        *(formatting.number(report.cost[name].measured) if name in report.cost else formatting.NONE
          for name in (report.chief, *others)),
    ]  # fmt: skip


def _section(entry: Entry) -> Markup:
    report = entry.report
    shown = [html.output_units(example, report.methods) for example in report.examples[:1]]
    classes = [
        html.figure(charts.probabilities(example, report.methods), f"Class probabilities of {example.name}.")
        for example in report.examples[:2]
        if example.probabilities
    ]
    note = "Grey: histogram of the draws. A dashed line shows a mean alone, a bell a mean and a deviation."
    return html.section(
        entry.title,
        entry.about,
        element("p", html.prose(report.summary)),
        html.tiles(report),
        html.legend(report.methods, drawn="Monte Carlo"),
        element("p", note, class_="note"),
        *shown,
        element("div", *classes, class_="pair"),
        element("p", html.prose(f"What to do next: {' '.join(report.advice)}")),
        element("p", element("a", "The whole report", href=entry.link), ": every layer, more inputs, all numbers."),
    )
