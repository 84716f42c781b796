"""What `momentprop.check` returns: numbers, and ways to read them."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking import advice, html, next_step, plot, sentences, tables
from momentprop.checking.next_step import Step
from momentprop.checking.results import Results
from momentprop.markdown import code, paragraph, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Report(Results):
    """How close methods come to many draws at every module of a network. `print` shows it as a table.

    `modules` holds a `ModuleAccuracy` for every output, by the path of its module: `path#2` for a second call,
    `path.key` or `path[0]` for one of several outputs, `output` for the output of the model. `output` is the name of
    the final output.
    """

    def __str__(self) -> str:
        return _text(self, quote=str)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()  # in a notebook

    @property
    def summary(self) -> str:
        """The result in a few sentences."""
        return sentences.summary(self)

    @property
    def advice(self) -> list[str]:
        """What to do next, in a few sentences that follow from the figures at the output."""
        return advice.sentences(self)

    @property
    def next(self) -> Step | None:
        """The next step: `ap2`, `covariance`, `probes`, `calibrate` or `sample`, with the code to write."""
        return next_step.step(self)

    def to_dict(self) -> dict[str, Any]:
        """All numbers: `to_dict()["modules"]["conv1"]["methods"]["ap2"]["eps_mean"]`."""
        return asdict(self)

    def to_json(self, indent: int | None = 1) -> str:
        """All numbers as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_markdown(self) -> str:
        """The summary and the tables as Markdown."""
        return _text(self, quote=code)

    def plot(self) -> "Figure":
        """A figure of `eps_mean` and `eps_std` at every module; needs matplotlib."""
        return plot.figure(self)

    def to_html(self) -> str:
        """The report as one self-contained HTML page."""
        return html.page(self)

    def save_html(self, path: str | Path) -> Path:
        """Write the HTML page to a file."""
        path = Path(path)
        path.write_text(self.to_html(), encoding="utf-8")
        return path


def _text(report: Report, quote: Callable[[str], str]) -> str:
    """The layers, the output in a table and in words, and what to do next; `quote` escapes the user's names."""
    parts = [f"{quote(report.model)}: {report.inputs:,} inputs, {report.samples:,} draws, {report.seconds:.0f} s"]
    for figure, what in (
        ("eps_mean", "Layer by layer, how far the means are off, in standard deviations:"),
        ("eps_std", "Layer by layer, the standard deviations over the true ones (1 is exact):"),
    ):
        head, rows = tables.by_module(report, figure, quote)
        parts += [what, table(head, rows)] if rows else []
    parts += ["At the output:", table(*tables.summary(report, quote))]
    parts.append("\n".join(paragraph(f"* {name}: {meaning}.") for name, meaning in tables.legend(report).items()))
    parts += [paragraph(text) for text in (*sentences.topics(report, quote).values(), *report.notes)]
    parts.append(paragraph(f"What to do next: {' '.join(advice.sentences(report, quote))}"))
    if report.next is not None:
        parts.append(f"Next, {report.next.name}:\n\n    {report.next.code.replace(chr(10), chr(10) + '    ')}")
    return "\n\n".join(parts)
