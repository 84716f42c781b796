"""Training runs whose numbers are already in the results, so they need not be made again."""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from momentprop_experiments.options import Options
from momentprop_experiments.runs.config import Config


def stored_runs(out: Path, name: str, options: Options) -> dict[str, dict[str, Any]]:
    """Return the runs of every network that `out/name.json` holds, if the options want only what is missing."""
    file = out / f"{name}.json"
    if not options.missing or not file.exists():
        return {}
    data = json.loads(file.read_text(encoding="utf-8"))
    return {network: found["runs"] for network, found in data["networks"].items()}


def same_command(run: Mapping[str, Any] | None, config: Config) -> bool:
    """Whether a stored run was made by this configuration, on whatever device.

    >>> from momentprop_experiments.runs.config import Config
    >>> same_command({"command": "momentprop train lenet --device cpu --dropout 0.2"}, Config(dropout=0.2))
    True
    >>> same_command({"command": "momentprop train lenet"}, Config(dropout=0.2)), same_command(None, Config())
    (False, False)
    """
    wanted = shlex.split(dataclasses.replace(config, device="auto").command)
    return run is not None and sorted(_without_device(shlex.split(run["command"]))) == sorted(wanted)


def _without_device(words: list[str]) -> list[str]:
    if "--device" not in words:
        return words
    at = words.index("--device")
    return words[:at] + words[at + 2 :]
