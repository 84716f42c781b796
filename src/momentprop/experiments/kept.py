"""Trained networks that are kept in the repository, in `results/networks`; a wheel does not have them."""

from pathlib import Path
from typing import Any

from torch import nn

from momentprop.errors import UserError
from momentprop.training import load_model

FOLDER = Path(__file__).parents[3] / "results" / "networks"
"""Where they are, if the package is run from its repository."""


def find(name: str, folder: Path | None = None) -> Path | None:
    """The file of a network such as `lenet-dropout`, or None if there is none."""
    path = (FOLDER if folder is None else folder) / f"{name}.safetensors"
    return path if path.is_file() else None


def load(name: str, folder: Path | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """A network in evaluation mode, and what is known about it, as `momentprop.training.load_model` gives them."""
    path = find(name, folder)
    if path is None:
        place = FOLDER if folder is None else folder
        raise UserError(
            f"there is no `{name}.safetensors` in `{place}`: clone the repository, which has it, "
            "or name the folder with `--networks`"
        )
    return load_model(path)
