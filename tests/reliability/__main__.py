"""`python -m tests.reliability` prints every defect, what was measured once, and what is measured now."""

import sys

from tests.reliability.rows import rows


def main() -> int:
    """Print the table; return 1 if a defect is back."""
    failed = False
    print("| # | defect | before | now |\n|---|---|---|---|")
    for row in rows():
        try:
            now = row.measure()
        except Exception as error:
            failed, now = True, f"**back**: {type(error).__name__}: {str(error).splitlines()[:1]}"
        print(
            "| " + " | ".join(str(cell).replace("|", "\\|") for cell in (row.number, row.defect, row.before, now)), "|"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
