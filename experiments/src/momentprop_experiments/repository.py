"""The repository that these experiments belong to: where its folder `results` is.

`results/networks` holds trained networks and `results/paper` the tables and figures. Neither is part of an installed
package, so both are found only in a clone of the repository: the one that this file lies in (as after `make`, which
installs the package editable), or else the one that the command is run in.
"""

from pathlib import Path

from momentprop.errors import UserError


def find_results() -> Path | None:
    """Return the folder `results` of the repository, or None outside of a clone."""
    for root in (*Path(__file__).resolve().parents, Path.cwd(), *Path.cwd().parents):
        if (root / "experiments" / "pyproject.toml").is_file() and (root / "results").is_dir():
            return root / "results"
    return None


def results_folder() -> Path:
    """Return the folder `results` of the repository, or raise a `UserError` that says how to get it."""
    found = find_results()
    if found is None:
        raise UserError("the folder `results` is not here: clone the repository, and run the command inside the clone")
    return found
