"""The folder of a run: checks its content and writes its files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from momentprop.files import write_file
from momentprop.training import checkpoint as checkpoints
from momentprop.training import log
from momentprop.training.checkpoint import Checkpoint, CheckpointError
from momentprop.training.settings import MAY_CHANGE, Settings

_OURS = (checkpoints.FILE, "checkpoint.json", "config.json", "log.csv", "curves.png", "curves.svg")
_OVERWRITE = "start over with `--overwrite` (`overwrite=True`)"
_OURS_AT_THE_END = ("result.json", "model.safetensors", *checkpoints.CALIBRATION)


class Folder:
    """The folder of a run, with its checkpoint, its configuration and its log."""

    def __init__(self, path: Path, settings: Settings) -> None:
        checkpoints.require()
        self.path, self.settings = path, settings

    def open(self, *, resume: bool = False, overwrite: bool = False) -> Checkpoint | None:
        """Return the checkpoint to resume from, or None to start; a folder that holds something else is an error.

        This changes nothing, so that all processes can do it.
        """
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"`{self.path}` is a file: choose another folder")
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
        found = checkpoints.read(self.path / checkpoints.FILE)
        self._require_same_settings(found)
        return found

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

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and the readable files beside it."""
        first = not checkpoint.state["history"] and checkpoint.state["step"] == 0
        if first:
            self._clear()
        checkpoints.write(self.path / checkpoints.FILE, checkpoint)
        self._write_json("checkpoint.json", checkpoint.state)
        if first:
            self._write_json("config.json", self.settings.as_dict())
        if checkpoint.state["step"] == 0:
            self.save_log(checkpoint.state["history"])

    def save_log(self, history: list[log.Row]) -> None:
        """Write the log."""
        log.write_csv(self.path / "log.csv", history)

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result."""
        self._write_json("result.json", result)

    def _clear(self) -> None:
        """Remove the files of the old run, but for its checkpoint, which the new one replaces."""
        self.path.mkdir(parents=True, exist_ok=True)
        checkpoints.remove_leftovers(self.path)
        for name in (*_OURS[1:], *_OURS_AT_THE_END):
            (self.path / name).unlink(missing_ok=True)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        write_file(self.path / name, (json.dumps(content, indent=1) + "\n").encode())
