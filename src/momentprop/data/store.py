"""Stores data sets on disk: one memory-mappable file per split, written atomically and always verified.

`root/mnist/train.safetensors` holds the tensors `images` (bytes, shape `(n, channels, height, width)`) and `labels`
(bytes). Every read compares the SHA-256 of that content with the known one, so a damaged file is detected rather than
used for training.
"""

import contextlib
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from momentprop.data.arrays import Arrays
from momentprop.data.errors import DataError

TEMPORARY = ".writing-"
"""The prefix of temporary files and folders, which are useless once their process has ended."""


def default_root() -> Path:
    """Return the folder of all data sets: `$MOMENTPROP_DATA`, or `momentprop` in the platform's cache folder."""
    given = os.environ.get("MOMENTPROP_DATA")
    return Path(given).expanduser() if given else _cache_folder() / "momentprop"


def _cache_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def checksum(arrays: Arrays) -> str:
    """Return the SHA-256 of the images, one after the other, followed by the labels."""
    digest = hashlib.sha256()
    for tensor in arrays:
        digest.update(tensor.reshape(-1).numpy().data)
    return digest.hexdigest()


def write(path: Path, arrays: Arrays) -> None:
    """Write a split atomically: `path` is either complete or absent, whatever happens."""
    require()
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
    os.close(handle)
    try:
        save_file({name: tensor.contiguous() for name, tensor in arrays._asdict().items()}, temporary)
        _flush_to_disk(temporary)
        os.chmod(temporary, 0o644)  # mkstemp makes private files, but data sets are for everyone
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(f"cannot write `{path}`: {error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _flush_to_disk(path.parent)


def _flush_to_disk(path: Path | str) -> None:
    handle = os.open(path, os.O_RDWR if os.path.isfile(path) else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path, expected: str) -> Arrays:
    """Map a split from the file `path`, whose content must have the SHA-256 `expected`."""
    require()
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        arrays = Arrays(tensors["images"], tensors["labels"])
    except (SafetensorError, KeyError) as error:
        raise DataError(f"`{path}` is damaged: it is not a complete safetensors file of images and labels") from error
    if any(tensor.dtype != torch.uint8 for tensor in arrays) or checksum(arrays) != expected:
        raise DataError(f"`{path}` is damaged: its content does not have the known SHA-256")
    return arrays


def require() -> None:
    """Raise an `ImportError` that says what to install, if the packages to store data sets are missing."""
    try:
        import numpy  # noqa: F401
        import safetensors.torch  # noqa: F401
    except ImportError as error:
        install = 'run `pip install "momentprop[experiments]"`'
        raise ImportError(f"data sets need safetensors and numpy: {install}") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time work in a folder while others wait; the lock ends with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a+b") as file:
        if not _try_lock(file.fileno()):
            print(f"waiting for another process, which is using {folder}", file=sys.stderr, flush=True)
            while not _try_lock(file.fileno()):
                time.sleep(0.1)
        yield  # closing the file unlocks it


def _try_lock(handle: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # raised, depending on the platform, if another process holds the lock
        return False
    return True
