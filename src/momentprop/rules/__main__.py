"""`python -m momentprop.rules`: print the rule table."""

import argparse
import textwrap

from momentprop.rules import table


def main() -> None:
    """Print every rule with its value type, its error and its source."""
    parser = argparse.ArgumentParser(prog="python -m momentprop.rules", description="Print the rule table.")
    parser.add_argument("op", nargs="?", help="only the operations whose name contains this")
    wanted = parser.parse_args().op or ""
    header = ("operation", "value", "error", "source")
    rows = [(row.op, row.on.__name__, row.error, row.source) for row in table() if wanted in row.op]
    if not rows:
        parser.exit(1, f"no operation contains {wanted!r}\n")
    widths = (max(len(row[0]) for row in rows), max(len(row[1]) for row in rows), 44, 56)
    for row in (header, *rows):
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for line in range(max(len(cell) for cell in cells)):
            parts = (cell[line] if line < len(cell) else "" for cell in cells)
            print("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    operations = len({row[0] for row in rows})
    print(f"\n{len(rows)} rules for {operations} operations")


if __name__ == "__main__":
    main()
