"""Markdown tables that also read well as plain text."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns, so that it also reads well as plain text.

    >>> print(table(("method", "error"), [("AP1", "0.31"), ("AP2", "0.03")]))
    | method | error |
    |--------|-------|
    | AP1    | 0.31  |
    | AP2    | 0.03  |
    """
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (head, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
