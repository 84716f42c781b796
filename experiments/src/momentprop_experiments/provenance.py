"""Where numbers come from: the device, the commit, the versions and the time, for the files that keep them."""

import functools
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
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


def together(records: Iterable[dict[str, Any] | None]) -> list[dict[str, Any] | None]:
    """Return each origin once, with the seconds of all its records; None stands for those that are unknown.

    >>> together([{"device": "cpu", "seconds": 1.0}, None, {"device": "cpu", "seconds": 2.0}, None])
    [{'device': 'cpu', 'seconds': 3.0}, None]
    """
    found: list[dict[str, Any] | None] = []
    for record in records:
        origin = record and {**record, "seconds": None}
        same = next((each for each in found if (each and {**each, "seconds": None}) == origin), None)
        if same is not None and record is not None:
            same["seconds"] = round(same["seconds"] + record["seconds"], 1)
        elif record is not None or None not in found:
            found.append(record and dict(record))
    return found


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
