"""Find and load the repository's trained networks, in `results/networks`."""

from pathlib import Path
from typing import Any

from torch import nn

from momentprop.errors import UserError
from momentprop_experiments.repository import find_results
from momentprop_experiments.runs.training_run import load_model


def find(name: str, folder: Path | None = None) -> Path | None:
    """Return the file of a network such as `lenet-dropout`, or None if it does not exist.

    Args:
        name: the name of the file without its suffix.
        folder: where to look; by default in the repository.
    """
    place = _default_folder() if folder is None else folder
    if place is None:
        return None
    path = place / f"{name}.safetensors"
    return path if path.is_file() else None


def load(name: str, folder: Path | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """Load a network in evaluation mode, and its description, as `momentprop_experiments.load_model` does."""
    path = find(name, folder)
    if path is None:
        place = folder or _default_folder() or "results/networks"
        raise UserError(
            f"there is no `{name}.safetensors` in `{place}`: clone the repository, which has it, "
            "or name the folder with `--networks`"
        )
    return load_model(path)


def _default_folder() -> Path | None:
    results = find_results()
    return None if results is None else results / "networks"
