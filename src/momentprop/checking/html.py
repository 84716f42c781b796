"""A report as one HTML page: without external files, readable on a phone, on paper, in dark mode, without scripts.

Our one script sorts tables and shows numbers under the pointer. The policy names its hash, so no other script runs.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources

from momentprop.checking import advice, charts, formatting, next_step, sentences, tables
from momentprop.checking.methods import JOINT
from momentprop.checking.results import SAMPLED, Example, Results
from momentprop.checking.svg import Markup, element, join, mark, style
from momentprop.checking.tables import Table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{}'"


def page(report: Results) -> str:
    """The whole page."""
    return document(f"{report.model}: how accurate is the propagation?", *_sections(report))


def document(title: str, *content: Markup) -> str:
    """A complete page that contains its style and its script."""
    css, script = _file("report.css"), _file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(digest)}">'),
            element("title", title),
            element("style", css),
        ]
    )
    body = join([element("main", *content), element("script", script)])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _file(name: str) -> Markup:
    return Markup(resources.files("momentprop.checking").joinpath(name).read_text(encoding="utf-8"))


def _sections(report: Results) -> list[Markup]:
    sections = [_header(report), _found(report), _next(report), _modules(report)]
    if any(example.units for example in report.examples):
        sections.append(_outputs(report))
    if any(example.probabilities for example in report.examples):
        sections.append(_classes(report))
    return [*sections, _cost(report), _tables(report), _footer(report)]


def _header(report: Results) -> Markup:
    return element(
        "header",
        element("p", "momentprop check", class_="over"),
        element("h1", report.model),
        element("p", f"{report.inputs:,} inputs, {report.samples:,} Monte Carlo draws, compared at {_places(report)}"),
        tiles(report),
    )


def _places(report: Results) -> str:
    """The outputs of modules that were compared, and the model's own."""
    places = len(report.modules)
    return "the output" if places == 1 else f"{places} outputs of modules"


def tiles(report: Results) -> Markup:
    """The most important figures at the output, in large letters: for the main method, and with correlations."""
    return join([_tiles(report, name) for name in report.methods if name in (report.chief, JOINT)])


def _tiles(report: Results, name: str) -> Markup:
    found = report.at_output(name)
    draws = [formatting.worth(count, report.samples) for count in (found.worth_mean, found.worth_std)]
    factor, held = formatting.number(found.eps_std), formatting.percent(found.coverage.get("90"))
    told = [
        (formatting.number(found.eps_mean), "Means", f"standard deviations off, like the means of {draws[0]} draws"),
        (f"×{factor}", "Deviations", f"of the true ones, as good as those of {draws[1]} draws"),
        (held, "Intervals", "of the draws lie in the 90 % intervals"),
        (formatting.number(report.cost[name].measured), "Price", "passes of the plain network"),
    ]
    shown = [
        element("div", element("span", what), element("b", big), element("small", more), class_="tile")
        for big, what, more in told
        if not big.endswith(formatting.NONE)
    ]
    meaning = f": {sentences.WORDS[name]}" if name in sentences.WORDS else ""
    caption = element("p", element("strong", name), meaning, class_="caption")
    return join([caption, element("div", *shown, class_="tiles")])


def _found(report: Results) -> Markup:
    return section(
        "What was found", "", topics(report), table(tables.summary(report, str)), meanings(tables.legend(report))
    )


def topics(report: Results) -> Markup:
    """The result in sentences, each after its topic."""
    return _described({topic: prose(text) for topic, text in sentences.topics(report).items()}, "topics")


def meanings(said: Mapping[str, str]) -> Markup:
    """What the columns of a table mean."""
    return _described({name: prose(text) for name, text in said.items()}, "meanings")


def _described(said: Mapping[str, Markup], kind: str) -> Markup:
    rows = [element("div", element("dt", name), element("dd", text)) for name, text in said.items()]
    return element("dl", *rows, class_=kind)


def _modules(report: Results) -> Markup:
    charted = [figure(charts.means(report), "Error of the means in standard deviations. Further left is better.")]
    if any(accuracy.eps_std for module in report.modules.values() for accuracy in module.methods.values()):
        text = "The standard deviations over those of the draws. 1 is exact; to the left they are too small."
        charted.append(figure(charts.deviations(report), text))
    note = (
        "Modules are in the order they run. Shaded: what an exact method would show, because the draws are finite. "
        "Click a name to hide or show it."
    )
    return section("Layer by layer", note, legend(report.methods), element("div", *charted, class_="pair"))


def _outputs(report: Results) -> Markup:
    note = "Grey: histogram of the draws. A dashed line is a mean alone, a bell a mean and a deviation."
    shown = [output_units(example, report.methods) for example in report.examples if example.units]
    return section("Output units", note, legend(report.methods, drawn="Monte Carlo"), *shown)


def output_units(example: Example, methods: Sequence[str]) -> Markup:
    """The output units of an input: histograms of the draws, with the moments by each method."""
    charted = element("div", *(charts.unit(u, methods) for u in example.units), class_="units")
    return element("article", element("h3", *pictures(example), example.name), charted)


def pictures(example: Example) -> list[Markup]:
    """An input as a picture, without and with its noise."""
    told = {"without noise": example.picture, "with one draw of its noise": example.noisy}
    return [
        element("img", src=source, alt=f"{example.name} {how}", title=how) for how, source in told.items() if source
    ]


def _classes(report: Results) -> Markup:
    shown = [
        figure(charts.probabilities(example, report.methods), example.name)
        for example in report.examples
        if example.probabilities
    ]
    note = (
        "The probability of each class, averaged over the draws (bars) and by each method (marks). If the outputs are "
        "not scores of classes, write `classes=None`."
    )
    key = legend(report.methods, drawn="Monte Carlo")
    return section("Class probabilities", note, key, element("div", *shown, class_="pair"))


def _cost(report: Results) -> Markup:
    text = (
        "Solid: the price of a method, in forward passes of the plain network. Pale: how many draws, of one pass each, "
        f"have the same error at the output. {report.samples:,} draws cannot resolve larger numbers."
    )
    charted = [figure(charts.cost(report), text)]
    if any(report.at_output(name).coverage for name in report.methods):
        text = (
            "The share of draws of the output inside intervals of a nominal probability. A method on the line is "
            "right; below it, it is overconfident. Shaded: noise."
        )
        charted.append(figure(charts.reliability(report), text))
    return section("Price and reliability", "", legend(report.methods), element("div", *charted, class_="pair"))


def _tables(report: Results) -> Markup:
    note = (
        "Under the names they have in `report.to_dict()`: eps_mean is the error of the means in standard deviations, "
        "eps_std the deviations over the true ones, rms_log_std the relative error of a single one, correlation that "
        "of the deviations with the true ones over all units, kl_... the divergence of class probabilities, worth the "
        "number of draws with the same error, floor what an exact method would show."
    )
    output = element("h3", "At the output")
    parts = [output, table(tables.at_output(report, str)), element("h3", "Error of the means (eps_mean)")]
    parts.append(table(tables.means(report, str)))
    for name in report.methods:
        if tables.tells_layers(report, name):
            parts += [element("h3", f"Standard deviations by {name}"), table(tables.deviations(report, name, str))]
    return section("All numbers", note, *parts)


def _next(report: Results) -> Markup:
    said = [element("p", prose(sentence)) for sentence in (*report.notes, *advice.sentences(report))]
    following = next_step.step(report)
    if following is not None:
        said += [element("p", f"Next, {following.name}:"), element("pre", following.code)]
    return section("What to do next", "", *said)


def _footer(report: Results) -> Markup:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return element(
        "footer",
        element("h2", "How this was made"),
        element("pre", report.call),
        element("p", f"{versions}. {report.seconds:.0f} seconds."),
    )


def section(title: str, note: str, *content: Markup) -> Markup:
    """A part of a page with a heading and a note."""
    notes = [element("p", prose(note), class_="note")] if note else []
    return element("section", element("h2", title), *notes, *content)


def figure(chart: Markup, caption: str) -> Markup:
    """A chart with a sentence below it."""
    return element("figure", chart, element("figcaption", caption))


def legend(methods: Sequence[str], drawn: str | None = None) -> Markup:
    """Explains the mark of each method; the script makes it a switch for them."""
    entries = [element("span", _key(i), name, data_method=style(i)) for i, name in enumerate(methods)]
    if drawn is not None:
        entries.insert(0, element("span", element("i", class_="swatch"), drawn, title=SAMPLED))
    return element("p", *entries, class_="legend")


def _key(number: int) -> Markup:
    return element("svg", mark(7, 7, number), viewBox="0 0 14 14", class_="key", aria_hidden="true")


def table(content: Table) -> Markup:
    """A table that scrolls sideways if it is too wide; the script sorts it."""
    head, rows = content
    top = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    inner = element("table", element("thead", top), element("tbody", *body))
    return element("div", inner, class_="scroll", tabindex="0")


def prose(text: str) -> Markup:
    """A sentence with the text in backticks as code."""
    parts = text.split("`")
    return join([element("code" if i % 2 else "span", part) for i, part in enumerate(parts) if part])
