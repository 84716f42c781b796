"""Several reports on one page: for each an input under noise, the figures at the output, and a link to the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from momentprop.checking import charts, html, sentences, tables
from momentprop.checking.methods import CALIBRATED, JOINT
from momentprop.checking.report import Report
from momentprop.checking.results import Example, Unit
from momentprop.checking.svg import Markup, element

TRY = 'momentprop.check(model, x, input_variance=0.1).save_html("report.html")'
"""How to get a report on a network of one's own."""


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
        element("p", "momentprop demo", class_="over"),
        element("h1", title),
        *(element("p", html.prose(paragraph), class_="summary") for paragraph in introduction),
    )
    first, *others = entries
    shown = [_section(first), _how_to_read(first.report), *map(_section, others)]
    return html.document(title, header, *shown, html.section("On your network", "", element("pre", TRY)))


def _section(entry: Entry) -> Markup:
    report = entry.report
    inputs = [_under_noise(example, report) for example in report.examples[:1]]
    more = element("p", element("a", "The whole report", href=entry.link), ": every layer, more inputs, all numbers.")
    said = element("p", html.prose(f"What to do next: {' '.join(report.advice)}"))
    output = element("h3", f"All {report.inputs:,} inputs, against {report.samples:,} draws")
    return html.section(
        entry.title, entry.about, *inputs, output, html.table(tables.summary(report, str)), said, more
    )


def _under_noise(example: Example, report: Report) -> Markup:
    """An input with its noise, what is read in it, and the histograms of its likeliest outputs, a method in each."""
    readings = sentences.readings(report, example)
    read = [element("li", element("span", who), " ", element("strong", what)) for who, what in readings.items()]
    shown = element("div", *map(_pictured, html.pictures(example)), element("ul", *read), class_="read")
    names = [name for name in ("ap1", report.chief, JOINT, CALIBRATED) if name in report.methods]
    drawn = [
        charts.unit(unit, report.methods, (name,), f'output "{unit.name}": {name}')
        for unit in _likeliest(example)
        for name in dict.fromkeys(names)
    ]
    note = (
        "Grey: how the outputs of the draws are distributed. A dashed line is a single number, a curve a mean with its "
        "deviation. It should cover the grey."
    )
    return element("article", shown, element("div", *drawn, class_="fours"), element("p", note, class_="note"))


def _pictured(picture: Markup) -> Markup:
    return element("figure", picture)


def _likeliest(example: Example, count: int = 2) -> list[Unit]:
    """The outputs with the largest means over draws."""
    ranked = sorted(example.units, key=lambda unit: unit.loc, reverse=True)[:count]
    return [unit for unit in example.units if unit in ranked]


def _how_to_read(report: Report) -> Markup:
    methods = {name: sentences.WORDS[name] for name in report.methods if name in sentences.WORDS}
    return html.section(
        "How to read the numbers",
        "The methods, and the columns of the tables. Click a column to sort by it.",
        element("div", html.meanings(methods), html.meanings(tables.legend(report)), class_="pair"),
    )
