"""The folder of built kernels: where it is, what is in it, and how it is emptied."""

import os
import re
import shutil
from pathlib import Path

ROOM = "building-"
"""How the names of folders begin in which a kernel is being built."""

_BUILT = re.compile(r"[0-9a-f]{24}\.so|kernel_[0-9a-f]{24}\.py")


def folder() -> Path:
    """Return where built kernels lie: `MOMENTPROP_CACHE`, or a folder in the user's cache."""
    given = os.environ.get("MOMENTPROP_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "momentprop" / "kernels"


def files() -> list[Path]:
    """Return the built kernels: shared libraries for the processor, and sources that Triton reads."""
    here = folder()
    return sorted(path for path in here.iterdir() if _BUILT.fullmatch(path.name)) if here.is_dir() else []


def size() -> int:
    """Return the bytes of all built kernels."""
    return sum(path.stat().st_size for path in files())


def clear() -> int:
    """Remove all built kernels, with what killed processes have left, and return their number; other files stay."""
    found = files()
    for path in found:
        path.unlink(missing_ok=True)
    for left in (*folder().glob(f"{ROOM}*"), *folder().glob("__pycache__")):
        shutil.rmtree(left, ignore_errors=True)
    return len(found)
