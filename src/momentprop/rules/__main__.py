"""`python -m momentprop.rules`: print the rule table."""

import argparse
import textwrap

from momentprop.dispatch import find
from momentprop.rules import Rule, table

_WIDTHS = (36, 56)  # of the wrapped columns, error and source


def main() -> None:
    """Print every rule with its value type, the operation's kind, the error and the source."""
    parser = argparse.ArgumentParser(prog="python -m momentprop.rules", description="Print the rule table.")
    parser.add_argument("op", nargs="?", help="print only the operations whose name contains this")
    wanted = parser.parse_args().op or ""
    found = [row for row in table() if wanted in row.op]
    if not found:
        parser.exit(1, f"no operation has {wanted!r} in its name: leave it out to see all\n")
    header = ("operation", "value", "kind", "rule", "error", "source")
    rows = [
        header,
        *((row.op, row.on.__name__, str(row.kind), written(row), row.error, row.source) for row in found),
    ]
    widths = (*(max(len(row[column]) for row in rows) for column in range(4)), *_WIDTHS)
    for row in rows:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for line in range(max(len(cell) for cell in cells)):
            parts = (cell[line] if line < len(cell) else "" for cell in cells)
            print("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    operations = len({row.op for row in found})
    served = sum(written(row) == "by kind" for row in found)
    print(f"\n{len(found)} rows for {operations} operations, {served} of them served by the rule of their kind")


def written(row: Rule) -> str:
    """Return what serves a row: the kind's rule, a rule written out, or both, for different arguments."""
    if find(row.op, row.on) is not row.function:
        return "by kind"
    return "both" if row.by_kind else "written"


if __name__ == "__main__":
    main()
