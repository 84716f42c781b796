"""Find the folder `results` of the repository.

`results/networks` holds trained networks, and `results/paper` the tables and figures. Neither is part of an installed
package, so both exist only in a clone of the repository: the clone that contains this file (`make` installs the package
editable), or else the clone that contains the working directory.
"""

from pathlib import Path

from momentprop.errors import UserError


def find_results() -> Path | None:
    """Return the folder `results` of the repository, or None outside a clone."""
    for root in (*Path(__file__).resolve().parents, Path.cwd(), *Path.cwd().parents):
        if (root / "experiments" / "pyproject.toml").is_file() and (root / "results").is_dir():
            return root / "results"
    return None


def results_folder() -> Path:
    """Return the folder `results` of the repository, or raise a `UserError` that says how to get it."""
    found = find_results()
    if found is None:
        raise UserError("cannot find the folder `results`: clone the repository, and run the command inside the clone")
    return found
