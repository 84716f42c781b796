"""Build hooks of the documentation: formulas, the rules page written from the rule table, figures from `results/`.

No page needs JavaScript or the network for its formulas: `pymdownx.arithmatex` marks them, also in docstrings, and
`on_page_content` replaces each mark by the MathML that latex2mathml makes of it.
"""

import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

from momentprop import rules
from momentprop.rules.__main__ import written

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])</(?P=tag)>', re.DOTALL
)
_PRIMED = re.compile(r"(?<![_^])(\\[A-Za-z]+|[A-Za-z])('{1,3})")
_SIGN = re.compile(r"(<mo[^>]*>(?:&#x0003D;|&#x02248;|&#x02264;|&#x02265;|&#x00028;|&#x0002C;)</mo>)<mo>&#x02212;</mo>")
_BAR = re.compile(r"\\[lr]?vert(?![A-Za-z])(?:\{\})?")
_ABSOLUTE = re.compile(r"(?<!\\)(?<!\\left)\|([^|]+)\|")
_RULES_MARKER = "<!-- rules -->"
_RESULTS = Path(__file__).parents[1] / "results"


def on_files(files: Any, /, *, config: Any) -> Any:
    """Put the figures of the paper's examples and of the benchmarks into the site's folder `figures`."""
    for path in sorted(path for folder in ("paper", "benchmarks") for path in (_RESULTS / folder).glob("*.png")):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """Put the rule table in the place of its marker."""
    if _RULES_MARKER in markdown:
        return markdown.replace(_RULES_MARKER, rules_table(rules.table()))
    return markdown


def on_page_content(content: str, /, **_: Any) -> str:
    """Replace every formula that arithmatex has marked by MathML."""
    return _FORMULA.sub(_replace_formula, content)


def rules_table(rows: Iterable[Any]) -> str:
    """Return the rules as a Markdown table, sorted by operation and value type; equal rules share a row."""
    operations: dict[tuple[str, ...], list[str]] = {}
    for row in sorted(rows, key=lambda row: (row.op, row.on.__name__)):
        rest = (f"`{row.on.__name__}`", f"*{row.kind}*", written(row), row.summary, row.error, row.source)
        operations.setdefault(rest, []).append(f"`{row.op}`")
    lines = ["| operation | on | kind | rule | what it computes | error | source |", "|---|---|---|---|---|---|---|"]
    for rest, names in operations.items():
        lines.append("| " + " | ".join(_cell(cell) for cell in (", ".join(names), *rest)) + " |")
    return "\n".join(lines)


def mathml(latex: str, display: str) -> str:
    """Convert a formula, with three repairs of what latex2mathml makes.

    A prime stays on the line, because the character is already raised and would be too small as a superscript. The bars
    of an absolute value are grouped, so that they are set as fences. A minus after a relation, a parenthesis or a comma
    is a sign, and is set without the space of a difference.
    """
    latex = _ABSOLUTE.sub(r"{|\1|}", _BAR.sub("|", latex))
    latex = _PRIMED.sub(lambda found: f"{{{found[1]} {'′″‴'[len(found[2]) - 1]}}}", latex)
    return _SIGN.sub(r'\1<mo form="prefix">&#x02212;</mo>', convert(latex, display=display))


def _replace_formula(match: re.Match[str]) -> str:
    inline, block = match["inline"], match["block"]
    if inline is not None:
        return mathml(html.unescape(inline).strip(), "inline")
    return mathml(html.unescape(block).strip(), "block")


def _cell(text: str) -> str:
    """Make `text` safe in a table cell: one line, and no vertical bar that would end the cell."""
    parts = re.split(r"(\$[^$]+\$)", " ".join(text.split()))
    # Every second part is a formula, where the bar has a name of its own.
    return "".join(part.replace("|", r"\vert{}" if i % 2 else "&#124;") for i, part in enumerate(parts))
