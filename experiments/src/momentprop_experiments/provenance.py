"""Where numbers come from: the device, the commit, the versions and the time, for the files that keep them."""

import functools
import platform
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("momentprop", "torch", "numpy")
_GIT = 10.0  # seconds that git may take


def start() -> Callable[[torch.device | str], dict[str, Any]]:
    """Note the time and the commit before a computation; what is returned describes it on a device once it is done.

    >>> made = start()
    >>> sorted(made("cpu"))
    ['commit', 'device', 'seconds', 'versions']
    """
    commit()
    started = time.perf_counter()
    return lambda device: provenance(torch.device(device), time.perf_counter() - started)


def provenance(device: torch.device, seconds: float) -> dict[str, Any]:
    """Describe a computation that took some seconds on a device: what really ran, not what was asked for.

    >>> import torch
    >>> sorted(provenance(torch.device("cpu"), 1.0))
    ['commit', 'device', 'seconds', 'versions']
    """
    return {
        "device": name_of(device),
        "commit": commit(),
        "versions": {"Python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "seconds": round(seconds, 1),
    }


def name_of(device: torch.device) -> str:
    """Return the kind and the model of a device.

    >>> name_of(torch.device("cpu")).startswith("cpu (")
    True
    """
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


@functools.cache
def commit() -> str | None:
    """Return the commit of the source, with a remark if its files were changed since; None outside a clone.

    The first call decides: make it before a long computation, during which the clone may move on.
    """
    try:
        found = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "*.py")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{found}, with changes" if changed else found


def _git(*command: str) -> str:
    folder = Path(__file__).parent
    done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True, timeout=_GIT)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
