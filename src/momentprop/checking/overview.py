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
"""How to get a report on your own network."""


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
    opening = [
        element("p", "momentprop demo", class_="over"),
        element("h1", title),
        *(element("p", html.prose(paragraph), class_="summary") for paragraph in introduction),
    ]
    present = [name for name in sentences.WORDS if any(name in entry.report.methods for entry in entries)]
    methods = html.meanings({name: sentences.WORDS[name] for name in present})
    header = element("header", *opening, html.section("What is compared", "", methods))
    first, *others = entries
    legend = html.section(
        "How to read the table", "Click a column to sort by it.", html.meanings(tables.legend(first.report))
    )
    own = html.section("On your network", "", element("pre", TRY))
    return html.document(title, header, _section(first), legend, *map(_section, others), own)


def _section(entry: Entry) -> Markup:
    report = entry.report
    inputs = [_under_noise(example, report) for example in report.examples[:1]]
    more = element("p", element("a", "The whole report", href=entry.link), ": every layer, more inputs, all numbers.")
    said = element("p", html.prose(f"What to do next: {' '.join(report.advice)}"))
    output = element("h3", f"All {report.inputs:,} inputs, against {report.samples:,} draws")
    return html.section(entry.title, entry.about, *inputs, output, html.table(tables.summary(report, str)), said, more)


def _under_noise(example: Example, report: Report) -> Markup:
    """An input with its noise, what the methods read in it, and histograms of its likeliest outputs, one per method."""
    readings = sentences.readings(report, example)
    read = [element("li", element("span", who), " ", element("strong", what)) for who, what in readings.items()]
    shown = element("div", *html.pictures(example), element("ul", *read), class_="read")
    note = (
        "Grey: the outputs of the draws. A dashed line is a single number, a curve a mean with its standard deviation. "
        "A good curve covers the grey. Point at a picture for its numbers."
    )
    rows = [part for unit in _likeliest(example) for part in _row(unit, report)]
    return element("article", shown, element("p", note, class_="note"), *rows)


def _row(unit: Unit, report: Report) -> list[Markup]:
    """The histogram of an output under a heading, once for each method."""
    names = dict.fromkeys(("ap1", report.chief, JOINT, CALIBRATED))
    drawn = [charts.unit(unit, report.methods, (name,), name) for name in names if name in unit.moments]
    return [element("h4", f'The output for "{unit.name}"'), element("div", *drawn, class_="fours")]


def _likeliest(example: Example, count: int = 2) -> list[Unit]:
    """The outputs with the largest means over draws."""
    ranked = sorted(example.units, key=lambda unit: unit.loc, reverse=True)[:count]
    return [unit for unit in example.units if unit in ranked]
