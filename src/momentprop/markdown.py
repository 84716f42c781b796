"""Markdown tables that also read well as plain text, and names in Markdown."""

import re
import textwrap
from collections.abc import Sequence


def code(name: str) -> str:
    r"""A name as code, on one line, in which Markdown finds no markup.

    >>> code("<b>\n[x](y)`")
    "`<b> [x](y)'`"
    """
    return "`" + re.sub(r"\s", " ", name.replace("`", "'")) + "`" if name else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns, so that it also reads well as plain text; each cell is one line of text.

    >>> print(table(("method", "error"), [("AP1", "0.31"), ("AP2", "0.03")]))
    | method | error |
    |--------|-------|
    | AP1    | 0.31  |
    | AP2    | 0.03  |
    """
    head, *rows = [[_cell(text) for text in row] for row in (head, *rows)]
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (head, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def paragraph(text: str) -> str:
    """A paragraph, or an entry of a list, in lines of at most 80 letters.

    >>> print(paragraph("* one two " + "three " * 14))
    * one two three three three three three three three three three three three
      three three three
    """
    indent = "  " if text.startswith("* ") else ""
    return textwrap.fill(text, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _cell(text: str) -> str:
    """A text that does not end its cell: bars are escaped, and separated from a backslash before them."""
    return re.sub(r"(\\*)\|", lambda found: found[1] + (" " if found[1] else "") + r"\|", re.sub(r"\s", " ", text))
