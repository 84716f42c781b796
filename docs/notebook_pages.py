"""Build hook of the documentation: every notebook in `notebooks/` becomes a page, with its outputs.

Its text stays Markdown, its code is highlighted like that of the other pages, and its figures become files. So a page
needs neither JavaScript nor the network, appears in the search, and follows the theme.
"""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"

_LINK = re.compile(r"\]\((?P<to>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_OF_PANDAS = re.compile(r"<style.*?</style>|^ +|\n| border=.1.", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.*)", re.MULTILINE)


def on_files(files: Any, /, *, config: Any) -> Any:
    """Add the pages of the notebooks, their figures, and the notebooks themselves to open in Jupyter."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        text, figures = page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
        for name, figure in figures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=figure))
    return files


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, with its figures by the names of their files."""
    parts, figures, heading = [], dict[str, bytes](), path.stem
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            heading = [heading, *_HEADING.findall(cell.source)][-1]
            parts.append(_LINK.sub(_as_on_the_site, cell.source))
            if len(parts) == 1:
                parts.append(f'[Download this notebook]({path.name}){{ download="{path.name}" }}')
            continue
        parts.append(_fenced(cell.source, "python"))
        for output in cell.outputs:
            name = f"{path.stem}-{len(figures) + 1}.png"
            if "image/png" in output.get("data", {}):
                figures[name] = base64.b64decode(output.data["image/png"])
                parts.append(f"![Figure: {heading}]({name})")
            else:
                parts.extend(_shown(output))
    return "\n\n".join(parts) + "\n", figures


def _shown(output: Any) -> Iterator[str]:
    """Yield an output that is no figure: a table as it is, and text as a block of its own."""
    data = output.get("data", {})
    if "text/html" in data:
        yield _OF_PANDAS.sub("", data["text/html"])
    elif "text/markdown" in data:
        yield data["text/markdown"]
    else:
        yield _fenced(output.get("text", data.get("text/plain", "")).rstrip(), "{ .text .output }")


def _fenced(text: str, language: str) -> str:
    return f"````{language}\n{text}\n````"


def _as_on_the_site(link: re.Match[str]) -> str:
    """Turn a link that works in the repository into one that works on the site."""
    to, anchor = link["to"], link["anchor"] or ""
    if to.startswith("../docs/"):
        return f"]({to.replace('docs/', '', 1)}{anchor})"
    if "/" not in to and to.endswith(".ipynb"):
        return f"]({to.removesuffix('.ipynb')}.md{anchor})"
    return link[0]
