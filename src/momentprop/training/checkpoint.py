"""Checkpoints: one safetensors file with everything that a run needs to go on, written atomically.

The header of the file holds, as JSON, the format, the configuration, the position and the history; the tensors are the
model, the optimizer and the states of the random generators. A SHA-256 of all of it is verified when it is read.
Nothing is ever unpickled. `checkpoint.json` beside it is for people to read, and is not read back.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentprop.errors import UserError

FORMAT = 1
"""The version of the format."""

FILE = "checkpoint.safetensors"
"""The name of the file in the folder of the run."""

CALIBRATION = ("calibration.safetensors", "calibration.json")
"""The names of the calibration of a trained network there: a file, and its readable part."""

_KEY = "momentprop"


class CheckpointError(UserError):
    """A checkpoint cannot be used; the message says why."""


@dataclass
class Checkpoint:
    """Where a run is: JSON-like `state` and the tensors of the model, the optimizer and the generators."""

    state: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under a prefix, without it."""
        return {name[len(prefix) :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, so that at any moment the file is whole: the old one, or the new one."""
    save = _safetensors().torch.save
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    text = json.dumps(checkpoint.state)
    header = {"format": FORMAT, "sha256": digest(tensors, text)}
    write_file(path, save(tensors, {_KEY: json.dumps(header), "state": text}))


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, or raise a `CheckpointError` that says what is wrong with it."""
    package = _safetensors()
    try:
        with package.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
    except package.SafetensorError as error:
        raise CheckpointError(f"`{path}` is damaged or no safetensors file ({error})") from error
    if _KEY not in metadata or "state" not in metadata:
        raise CheckpointError(f"`{path}` is not a checkpoint of momentprop")
    try:
        header = json.loads(metadata[_KEY])
        version, expected = header["format"], header["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"`{path}` is damaged: its header cannot be read") from error
    if version != FORMAT:
        raise CheckpointError(f"`{path}` has format {version}, but this version of momentprop reads format {FORMAT}")
    if digest(tensors, metadata["state"]) != expected:
        raise CheckpointError(f"`{path}` is damaged: its SHA-256 is not the one that was written")
    return Checkpoint(json.loads(metadata["state"]), tensors)


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """The SHA-256 of a text and tensors on the CPU, with their names, types and shapes."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return total.hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically: whoever reads it finds the old content or the new one, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process can have left of a file that it was writing."""
    for name in (FILE, "checkpoint.json", "config.json", "log.csv", "result.json", "model.safetensors", *CALIBRATION):
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer as tensors, by parameter and name, and the rest as JSON takes it."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, entry in entries.items():
            (tensors if isinstance(entry, Tensor) else rest)[f"{index}.{name}"] = entry
    return tensors, rest


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    """Put a state back; learning rates and other settings stay as they are."""
    state: dict[int, dict[str, Any]] = {}
    for key, entry in (*tensors.items(), *rest.items()):
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = entry
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def require() -> None:
    """Raise an `ImportError` that says what to install, if checkpoints cannot be written."""
    _safetensors()


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError('checkpoints need safetensors: run `pip install "momentprop[experiments]"`') from error
    return safetensors
