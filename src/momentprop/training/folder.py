"""The folder of a run: checks its content and writes its files."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from momentprop.calibration import Calibration
from momentprop.files import remove_leftovers, write_file
from momentprop.training import checkpoint as checkpoints
from momentprop.training import log
from momentprop.training.checkpoint import Checkpoint, CheckpointError
from momentprop.training.distributed import Ranks
from momentprop.training.lock import FolderLock
from momentprop.training.settings import MAY_CHANGE, Settings

_OURS = (checkpoints.FILE, "checkpoint.json", "config.json", "log.csv", "curves.png", "curves.svg")
_OVERWRITE = "start over with `--overwrite` (`overwrite=True`)"
_OURS_AT_THE_END = ("result.json", checkpoints.MODEL, *checkpoints.CALIBRATION)


class Folder:
    """The folder of a run, with its checkpoint, its configuration and its log."""

    def __init__(self, path: Path, settings: Settings) -> None:
        checkpoints.require()
        self.path, self.settings = path, settings

    @property
    def file(self) -> Path:
        """The file of the checkpoint."""
        return self.path / checkpoints.FILE

    def open(self, *, resume: bool = False, overwrite: bool = False) -> Checkpoint | None:
        """Return the checkpoint to resume from, or None to start; a folder that holds something else is an error.

        This changes nothing, so all processes can do it.
        """
        self._require_folder()
        here = [name for name in (*_OURS, *_OURS_AT_THE_END) if (self.path / name).exists()]
        if overwrite or not here:
            return None
        if checkpoints.FILE not in here:
            raise CheckpointError(
                f"`{self.path}` holds {here[0]}, but no checkpoint: choose another folder, or {_OVERWRITE}"
            )
        if not resume:
            raise CheckpointError(
                f"`{self.path}` already holds a run: continue it with `--resume` (`resume=True`), {_OVERWRITE}, "
                "or choose another folder"
            )
        found = checkpoints.read(self.file)
        with checkpoints.valid_checkpoint(self.file):
            checkpoints.require_sense(found)
        self._require_same_settings(found)
        self._require_enough_epochs(found)
        return found

    @contextlib.contextmanager
    def locked(self, ranks: Ranks) -> Iterator[None]:
        """Keep other runs out of the folder; if one is in it, this is an error in all processes."""
        self._require_folder()
        lock, error = FolderLock(self.path), None
        if ranks.is_first:
            try:
                lock.acquire()
            except (CheckpointError, OSError) as refused:
                error = refused
        failures = ranks.sum(torch.tensor(0.0 if error is None else 1.0, device=ranks.device))
        try:
            if error is not None:
                raise error
            if failures > 0:
                raise CheckpointError(f"`{self.path}` cannot be used: the first process says why")
            yield
        finally:
            lock.release()

    def _require_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"`{self.path}` is a file: choose another folder")

    def _require_same_settings(self, found: Checkpoint) -> None:
        """Refuse a checkpoint with other settings; those that an older version lacked count as defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(self.settings)}
        mine, theirs = self.settings.as_dict(), {**defaults, **found.state["settings"]}
        for name in sorted({*mine, *theirs} - MAY_CHANGE):
            if mine.get(name) != theirs.get(name):
                raise CheckpointError(
                    f"`{self.path}` holds another run: its {name.replace('_', ' ')} is {theirs.get(name)!r}, "
                    f"not {mine.get(name)!r}; choose another folder, or {_OVERWRITE}"
                )

    def _require_enough_epochs(self, found: Checkpoint) -> None:
        """Refuse to end before the position of the checkpoint."""
        epoch, step = found.state["epoch"], found.state["step"]
        least = epoch + (step > 0)
        if self.settings.epochs < least:
            part = f" and {step} steps of the next" if step > 0 else ""
            raise CheckpointError(
                f"`{self.path}` has already been trained for {epoch} epochs{part}, but epochs is "
                f"{self.settings.epochs}: give at least {least}, or {_OVERWRITE}"
            )

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and the readable files beside it."""
        first = not checkpoint.state["history"] and checkpoint.state["step"] == 0
        if first:
            self._clear()
        checkpoints.write(self.file, checkpoint)
        self._write_json("checkpoint.json", checkpoint.state)
        if first:
            self._write_json("config.json", self.settings.as_dict())
        if checkpoint.state["step"] == 0:
            self.save_log(checkpoint.state["history"])

    def save_log(self, history: list[log.Row]) -> None:
        """Write the log."""
        log.write_csv(self.path / "log.csv", history)

    def tidy(self, history: list[log.Row]) -> None:
        """Clean up after a killed run: remove its temporary files, and write its log, which may be missing."""
        remove_leftovers(self.path, (*_OURS, *_OURS_AT_THE_END))
        self.save_log(history)

    def save_model(self, model: nn.Module, about: dict[str, Any], calibration: Calibration | None = None) -> None:
        """Write the trained model, with its description in the header, and its calibration."""
        if calibration is not None:
            calibration.save(self.path / checkpoints.CALIBRATION[0])
        checkpoints.write(self.path / checkpoints.MODEL, Checkpoint(about, dict(model.state_dict())))

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result."""
        self._write_json("result.json", result)

    def _clear(self) -> None:
        """Remove the files of the old run, except its checkpoint, which the new one replaces."""
        self.path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.path, (*_OURS, *_OURS_AT_THE_END))
        for name in (*_OURS[1:], *_OURS_AT_THE_END):
            (self.path / name).unlink(missing_ok=True)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        write_file(self.path / name, (json.dumps(content, indent=1) + "\n").encode())
