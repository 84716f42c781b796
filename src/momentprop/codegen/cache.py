"""The folder of built kernels: where it is, what is in it, and how it is emptied."""

import os
import re
import shutil
from pathlib import Path

ROOM = "building-"
"""The prefix of folders in which a kernel is being built."""

_BUILT = re.compile(r"[0-9a-f]{24}\.so|kernel_[0-9a-f]{24}\.py")


def folder() -> Path:
    """Return the folder of built kernels: `MOMENTPROP_CACHE`, or a folder in the user's cache."""
    given = os.environ.get("MOMENTPROP_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "momentprop" / "kernels"


def files() -> list[Path]:
    """Return the built kernels: shared libraries for the CPU, and sources that Triton reads."""
    here = folder()
    return sorted(path for path in here.iterdir() if _BUILT.fullmatch(path.name)) if here.is_dir() else []


def size() -> int:
    """Return the size of all built kernels in bytes."""
    return sum(path.stat().st_size for path in files())


def clear() -> int:
    """Remove all built kernels and what killed processes left, and return the number of kernels; other files stay."""
    found = files()
    for path in found:
        path.unlink(missing_ok=True)
    for left in (*folder().glob(f"{ROOM}*"), *folder().glob("__pycache__")):
        shutil.rmtree(left, ignore_errors=True)
    return len(found)
