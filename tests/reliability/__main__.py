"""`python -m tests.reliability` prints every defect, what was measured once, and what is measured now.

With `--write` it also puts the table into `docs/reliability.md`.
"""

import re
import sys
import warnings
from pathlib import Path

from tests.reliability.rows import rows

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def main() -> int:
    """Print the table; return 1 if a defect is back."""
    failed = False
    lines = ["| # | defect | before | now |", "|---|---|---|---|"]
    print(*lines, sep="\n")
    for row in rows():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                now = row.measure()
        except Exception as error:
            failed, now = True, f"**back**: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        cells = (str(cell).replace("|", "\\|") for cell in (row.number, row.defect, row.before, now))
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if "--write" in sys.argv[1:] and not failed:
        page = PAGE.read_text(encoding="utf-8")
        table = "<!-- defects -->\n\n" + "\n".join(lines) + "\n\n<!-- end -->"
        PAGE.write_text(re.sub(r"<!-- defects -->.*<!-- end -->", lambda _: table, page, flags=re.S), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
