"""Build hooks of the documentation: formulas, examples, the rules page from the rule table, figures from `results/`.

No page needs JavaScript or the network for its formulas: `pymdownx.arithmatex` marks them, also in docstrings, and
`on_page_content` replaces each mark by the MathML that latex2mathml makes of it.

Examples are doctests. They appear as a Python session, and the copy button takes only their code: the theme copies the
attribute `data-copy`, where there is one.
"""

import html
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

from momentprop import rules
from momentprop.rules.__main__ import written

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])</(?P=tag)>', re.DOTALL
)
_LONG = 60  # the length from which an inline formula may scroll
_PRIMED = re.compile(r"(?<![_^])(\\[A-Za-z]+|[A-Za-z])('{1,3})")
_SIGN = re.compile(r"(<mo[^>]*>(?:&#x0003D;|&#x02248;|&#x02264;|&#x02265;|&#x00028;|&#x0002C;)</mo>)<mo>&#x02212;</mo>")
_BAR = re.compile(r"\\[lr]?vert(?![A-Za-z])(?:\{\})?")
_ABSOLUTE = re.compile(r"(?<!\\)(?<!\\left)\|([^|]+)\|")
_SESSION = re.compile(r"^(?P<indent> *)```python\n(?=(?P=indent)>>> )", re.MULTILINE)
_BLOCK = re.compile(r'<div class="language-pycon highlight">(?=<pre>(?P<shown>.*?)</pre>)', re.DOTALL)
_TOGETHER = re.compile(
    r"<(pre|code)\b.*?</\1>|<[^>]*>"  # code and tags, which stay as they are
    r"|(?<=\d) (?=(?:%|µs|ms|s|[KMG]iB|nats)(?!\w))|(?<=\d) ± (?=\d)|(?<=·|=) (?=\d)| (?=†)",
    re.DOTALL,
)
_PROMPT = re.compile(r"(?:>>>|\.\.\.)(?: |$)")
_DOCUMENTED = re.compile(r"^::: ([\w.]+)(\n    options:)?", re.MULTILINE)
_REFERENCE, _TOPIC = Path(__file__).parent / "reference", re.compile(r"reference/(\w+)\.md")
_RESULTS = Path(__file__).parents[1] / "results"


def on_files(files: Any, /, *, config: Any) -> Any:
    """Put the figures of the paper's examples and of the benchmarks into the site's folder `figures`."""
    for path in sorted(path for folder in ("paper", "benchmarks") for path in (_RESULTS / folder).glob("*.png")):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """Replace markers by what they stand for, and mark examples as Python sessions."""
    for marker, made in _PLACES.items():
        if marker in markdown:
            markdown = markdown.replace(marker, made())
    return _SESSION.sub(r"\g<indent>```pycon\n", markdown)


def on_page_content(content: str, /, **_: Any) -> str:
    """Replace every formula that arithmatex has marked by MathML, and give every example its code to copy."""
    return _BLOCK.sub(_with_code, together(_FORMULA.sub(_replace_formula, content)))


def together(content: str) -> str:
    """Let no line end between a number and its unit, or inside `1 ± 0.1`.

    >>> together("<td>5 ms</td> or 2 ± 0.1 or 9 %, <code>9 % 5</code>")
    '<td>5&nbsp;ms</td> or 2&nbsp;±&nbsp;0.1 or 9&nbsp;%, <code>9 % 5</code>'
    """
    return _TOGETHER.sub(lambda found: found[0] if found[0][0] == "<" else found[0].replace(" ", "&nbsp;"), content)


def code_of(session: str) -> str:
    r"""Return the code of a Python session, without prompts and results; an empty line ends a block, as Python asks.

    >>> code_of(">>> for i in range(2):\n...     print(i)\n0\n1\n>>> i\n1")
    'for i in range(2):\n    print(i)\n\ni'
    """
    code: list[str] = []
    for line in session.splitlines():
        if prompt := _PROMPT.match(line):
            ends_block = prompt[0].startswith(">") and code and code[-1].startswith(" ")
            code += ["", line[prompt.end() :]] if ends_block else [line[prompt.end() :]]
    return "\n".join(code)


def _with_code(block: re.Match[str]) -> str:
    shown = html.unescape(re.sub(r"<[^>]*>", "", block["shown"]))
    code = html.escape(code_of(shown)).replace("\n", "&#10;")
    return f'<div class="language-pycon highlight" data-copy="{code}">'


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


def documented(page: Path) -> list[str]:
    """Return the full names that a reference page documents; a module stands for what it defines."""
    names = []
    for name, options in _DOCUMENTED.findall(page.read_text(encoding="utf-8")):
        names += _members(name) if options else [name]
    return names


def names_by_topic() -> str:
    """Return a heading and a table of names with first sentences for every reference page but the internals."""
    parts = []
    for name in _TOPIC.findall((_REFERENCE.parents[1] / "mkdocs.yml").read_text(encoding="utf-8")):
        page = _REFERENCE / f"{name}.md"
        if name == "internals":
            continue
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        rows = [f"| [`{name}`][{name}] | {_cell(_first_sentence(name))} |" for name in documented(page)]
        parts.append(
            "\n".join([f"## [{title}](reference/{page.name})", "", "| name | what it is |", "|---|---|", *rows])
        )
    return "\n\n".join(parts)


def _members(module: str) -> list[str]:
    found = importlib.import_module(module)
    return [f"{module}.{name}" for name in found.__all__ if callable(getattr(found, name))]


def _first_sentence(name: str) -> str:
    doc = inspect.getdoc(pkgutil.resolve_name(name)) or ""
    return " ".join(doc.partition("\n\n")[0].split())


def mathml(latex: str, display: str) -> str:
    """Convert a formula, with three repairs of what latex2mathml makes.

    A prime stays on the line, because the character is already raised and would be too small as a superscript. The bars
    of an absolute value are grouped, so they are set as fences. A minus after a relation, a parenthesis or a comma is a
    sign, and is set without the space of a difference.
    """
    latex = _ABSOLUTE.sub(r"{|\1|}", _BAR.sub("|", latex))
    latex = _PRIMED.sub(lambda found: f"{{{found[1]} {'′″‴'[len(found[2]) - 1]}}}", latex)
    return _SIGN.sub(r'\1<mo form="prefix">&#x02212;</mo>', convert(latex, display=display))


def _replace_formula(match: re.Match[str]) -> str:
    inline, block = match["inline"], match["block"]
    if inline is not None:
        made = mathml(html.unescape(inline).strip(), "inline")
        return f'<span class="long">{made}</span>' if len(inline) > _LONG else made
    return mathml(html.unescape(block).strip(), "block")


def _cell(text: str) -> str:
    """Make `text` safe in a table cell: one line, and no vertical bar that would end the cell."""
    parts = re.split(r"(\$[^$]+\$)", " ".join(text.split()))
    # Every second part is a formula, where the bar has a name of its own.
    return "".join(part.replace("|", r"\vert{}" if i % 2 else "&#124;") for i, part in enumerate(parts))


def _changelog() -> str:
    """The changelog, with links that work in the documentation, a link wherever it names a page, and plain versions."""
    text = (_REFERENCE.parents[1] / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    text = re.sub(r"`(docs/(\w+\.md))`(?!\])", r"[`\1`](\2)", text)
    return re.sub(r"^## \[(.*?)\]", r"## \1", text, flags=re.MULTILINE)


_PLACES: dict[str, Callable[[], str]] = {
    "<!-- rules -->": lambda: rules_table(rules.table()),
    "<!-- names -->": names_by_topic,
    "<!-- changelog -->": _changelog,
}
