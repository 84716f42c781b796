"""Checkpoints: one safetensors file with everything that a run needs to continue (see `momentprop.files`).

Its state holds the settings, the position and the history. Its tensors are those of the model, the optimizer and the
random generators. The file `checkpoint.json` beside it is for people, and is never read back.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from momentprop.files import (
    ContentError,
    FileError,
    decoded,
    read_tensors,
    require_safetensors,
    valid,
    write_tensors,
)

FILE = "checkpoint.safetensors"
"""The name of the checkpoint file in the folder of a run."""

MODEL = "model.safetensors"
"""The name of the file with the trained network."""

CALIBRATION = ("calibration.safetensors", "calibration.json")
"""The names of the files with the calibration of a trained network: the tensors, and the readable part."""

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


@dataclass(frozen=True)
class State:
    """What the state of a checkpoint must hold."""

    settings: dict[str, Any]
    examples: int
    names: list[str]
    epoch: int
    step: int
    seconds: float
    history: list[dict[str, float]]
    optimizer: dict[str, float | None]
    calibration: dict[str, Any] | None = None
    seen: int | None = None


def require_sense(found: Checkpoint) -> None:
    """Raise a `ContentError` if the state of a checkpoint is not the position of a run."""
    known = State.__dataclass_fields__
    state = decoded(State, {name: each for name, each in found.state.items() if name in known}, "its state")
    if min(state.epoch, state.step, state.seconds) < 0 or not math.isfinite(state.seconds):
        raise ContentError(f"its position is epoch {state.epoch}, step {state.step} after {state.seconds} seconds")
    if state.epoch != len(state.history):
        raise ContentError(
            f"its position is epoch {state.epoch}, step {state.step}, but its history has {len(state.history)} epochs"
        )
    for index, row in enumerate(state.history, start=1):
        if row.get("epoch") != index:
            raise ContentError(f"row {index} of its history is not that of epoch {index}")


@contextlib.contextmanager
def valid_checkpoint(path: Path) -> Iterator[None]:
    """Inside, content that makes no sense becomes a `CheckpointError` that names the file."""
    try:
        with valid(path, _KIND):
            yield
    except CheckpointError:
        raise
    except FileError as error:
        raise CheckpointError(str(error)) from error


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically: at any moment the file is either the old one or the new one."""
    write_tensors(path, checkpoint.state, checkpoint.tensors, _KIND)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, or raise a `CheckpointError` that says what is wrong with it."""
    try:
        return Checkpoint(*read_tensors(path, _KIND))
    except FileError as error:
        raise CheckpointError(str(error)) from error


def require() -> None:
    """Raise an `ImportError` that says what to install if checkpoints cannot be written."""
    require_safetensors(_KIND)
