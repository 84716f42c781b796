"""Checkpoints: one safetensors file with everything that a run needs to go on (see `momentprop.files`).

Its state holds the settings, the position and the history; the tensors are the model, the optimizer and the states of
the random generators. `checkpoint.json` beside it is for people to read, and is not read back.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from momentprop.files import FileError, read_tensors, require_safetensors, write_tensors

FILE = "checkpoint.safetensors"
"""The name of the file in the folder of the run."""

CALIBRATION = ("calibration.safetensors", "calibration.json")
"""The names of the calibration of a trained network there: a file, and its readable part."""

_KIND = "checkpoint"


class CheckpointError(FileError):
    """A checkpoint cannot be used; the message says why."""


@dataclass
class Checkpoint:
    """The position of a run: JSON-like `state`, and the tensors of the model, the optimizer and the generators."""

    state: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors under a prefix, without it."""
        return {name[len(prefix) :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, so that at any moment the file is whole: the old one, or the new one."""
    write_tensors(path, checkpoint.state, checkpoint.tensors, _KIND)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, or raise a `CheckpointError` that says what is wrong with it."""
    try:
        return Checkpoint(*read_tensors(path, _KIND))
    except FileError as error:
        raise CheckpointError(str(error)) from error


def require() -> None:
    """Raise an `ImportError` that says what to install, if checkpoints cannot be written."""
    require_safetensors(_KIND)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that a killed process can have left behind."""
    for name in (FILE, "checkpoint.json", "config.json", "log.csv", "result.json", "model.safetensors", *CALIBRATION):
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)
