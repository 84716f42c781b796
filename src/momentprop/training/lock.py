"""A lock on the folder of a run. The system releases it when the process ends, however it ends."""

import contextlib
import os
import sys
import warnings
from pathlib import Path

from momentprop.training.checkpoint import CheckpointError

NAME = ".lock"
"""The name of the lock file, which exists while the folder is in use and, after a kill, until the next run."""


class FolderLock:
    """Keeps other runs out of a folder, which it makes; `release` removes what it made, unless that is in use."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self.made: list[Path] = []
        self.handle: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise a `CheckpointError` if another run has it."""
        parents = (self.folder, *self.folder.parents)
        self.made = [folder for folder in parents if not folder.exists()]
        while self.handle is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            except (FileNotFoundError, FileExistsError):
                if self.folder.exists() and not self.folder.is_dir():
                    raise
                continue  # the last holder has just removed the folder
            self._lock(handle)
            if self._is_there(handle):
                self.handle = handle
            else:
                os.close(handle)  # the last holder has just removed the file
        os.truncate(self.handle, 0)
        os.write(self.handle, f"process {os.getpid()}\n".encode())

    def _lock(self, handle: int) -> None:
        try:
            _lock(handle)
        except BlockingIOError as error:
            holder = os.read(handle, 100).decode(errors="replace").strip()
            os.close(handle)
            raise CheckpointError(
                f"`{self.folder}` is in use by another run{f' ({holder})' if holder else ''}: "
                "choose another folder, or wait until that run has ended"
            ) from error
        except OSError as error:
            warnings.warn(
                f"`{self.folder}` cannot be locked ({error.strerror}): let no other run write there", stacklevel=4
            )

    def release(self) -> None:
        """Give the lock back."""
        if self.handle is None:
            return
        if self._is_there(self.handle):
            with contextlib.suppress(PermissionError):  # Windows does not remove open files: an empty one stays
                self.path.unlink(missing_ok=True)  # while it is locked, so that nobody else has it
        os.close(self.handle)
        self.handle = None
        for folder in self.made:
            try:
                folder.rmdir()
            except OSError:
                break  # it is used

    def _is_there(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        try:
            os.lseek(handle, 1 << 20, os.SEEK_SET)  # beyond the text, which others may read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from error
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
