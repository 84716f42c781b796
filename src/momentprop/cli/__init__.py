"""The command `momentprop`: checks a network, fetches data sets, builds kernels, and runs commands of other packages.

Each module of this folder is one command, with a function `register` that adds it. `main` turns a user's mistake into
one line on standard error and exit status 2. Any other error is our bug and keeps its traceback.
"""

import sys
from collections.abc import Sequence

from momentprop.errors import UserError

_FAILURE = 2  # the exit status of a mistake that the user can fix


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, by default with the arguments of the process, and return its exit status."""
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
