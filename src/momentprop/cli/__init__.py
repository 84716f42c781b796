"""The command `momentprop`: accuracy of a network, data sets, and what other packages add.

Each module of this folder is one command, with a function `register` that adds it. `main` turns what a user can do
wrong into one line on the standard error and the exit status 2; everything else is a bug of ours, and keeps its
traceback.
"""

import sys
from collections.abc import Sequence

from momentprop.errors import UserError

_FAILURE = 2  # the exit status of what the user can set right


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with arguments, by default those it was called with; return its exit status."""
    try:
        from momentprop.cli.app import run
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
            raise
        return _fail('the command line needs typer: run `pip install "momentprop[cli]"`')
    try:
        return run(arguments)
    except (UserError, OSError, ImportError) as error:
        return _fail(str(error))


def _fail(message: str) -> int:
    print(f"momentprop: {message}", file=sys.stderr)
    return _FAILURE
