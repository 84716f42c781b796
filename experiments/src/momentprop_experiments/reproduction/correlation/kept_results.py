"""Results that are kept between calls, so an interrupted experiment continues where it was."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import momentprop
from momentprop.files import write_file
from momentprop_experiments.provenance import start


def kept(
    place: Path, settings: Mapping[str, Any], compute: Callable[[], dict[str, Any]], device: torch.device
) -> dict[str, Any]:
    """Return the content of a file if it was made with these settings and this source, or compute and store it.

    It tells its provenance, because an earlier call may have run on another device.
    """
    asked = json.loads(json.dumps({**settings, "source": _source()}))
    if place.exists():
        found = json.loads(place.read_text())
        if found["settings"] == asked:
            return found["found"]  # type: ignore[no-any-return]
    made = start()
    found = {**compute(), "made": made(device)}
    write_file(place, json.dumps({"settings": asked, "found": found}).encode())
    return found


def _source() -> str:
    """Return a checksum of the library and of this package: numbers of another version are not reused."""
    digest = hashlib.sha256()
    folders = (Path(momentprop.__file__).parent, Path(__file__).parent)
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
