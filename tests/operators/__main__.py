"""`python -m tests.operators` runs torch's operator tests and prints what came of them.

It takes some minutes. `python -m tests.operators 2` tries two samples of each operator, `all` tries all samples.
"""

import sys
import time

from tests.operators.catalogue import operators
from tests.operators.summary import summaries, tables

USUAL = 20  # samples of each operator


def main(given: list[str]) -> int:
    """Print the tables; return 1 if a call is wrong."""
    most = int(given[0]) if given and given[0] != "all" else None if given else USUAL
    start, total, done = time.monotonic(), len(operators()), 0

    def show(name: str) -> None:
        nonlocal done
        done += 1
        line = f"{done} of {total} operators, {time.monotonic() - start:.0f} s: {name}"
        print(f"\r{line:<79.79}", end="" if done < total else "\n", file=sys.stderr, flush=True)

    found = summaries(most, show)
    print("\n".join(tables(found)))
    return int(any(summary.wrong for summary in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
