"""`python -m tests.operators` runs torch's operator tests and prints what came of them.

A number as argument limits the samples of each operator.
"""

import sys

from tests.operators.summary import summaries, tables


def main() -> int:
    """Print the tables; return 1 if a call is wrong."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else None
    found = summaries(most, lambda name: print(name, file=sys.stderr))
    print("\n".join(tables(found)))
    return int(any(summary.wrong for summary in found.values()))


if __name__ == "__main__":
    sys.exit(main())
