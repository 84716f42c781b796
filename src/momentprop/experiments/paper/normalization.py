"""Does it train? The CIFAR-10 network and a plain one of 20 layers, initialized or normalized in five ways.

Each case is one `momentprop train` into a folder of its own. What is there already is not trained again.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from momentprop.experiments.options import DEFAULTS, Options
from momentprop.experiments.paper.normalization_report import markdown, plot
from momentprop.experiments.result import Result
from momentprop.training.config import Config
from momentprop.training.run import train
from momentprop.user_error import UserError

NAME = "normalization"
TITLE = "Does it train? Five ways to initialize or normalize a network (curves, table)"

WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "bn-init": {"init": "bn"},
    "analytic-init": {"init": "analytic"},
    "bn": {"norm": "bn"},
    "analytic": {"norm": "analytic"},
}
"""The ways by name, and what each sets."""

_PLAIN: dict[str, Any] = {"method": "sample", "checkpoint_every": 0}  # standard training: there is nothing to draw
_FULL: dict[str, dict[str, Any]] = {
    "cifar": {"data": "cifar10", "activation": "lrelu", "epochs": 10},
    "plain20": {"data": "cifar10", "activation": "relu", "epochs": 10},
}
_QUICK: dict[str, dict[str, Any]] = {"lenet": {"data": "digits", "activation": "lrelu", "epochs": 2, "validation": 0.8}}


def run(out: Path, options: Options = DEFAULTS) -> Result:
    """Train what is not yet trained, and compare; `quick` trains LeNet a little on the embedded digits."""
    wanted = cases(options)
    folder = options.runs / (f"{NAME}-quick" if options.quick else NAME)
    missing = {name: config for name, config in wanted.items() if not _is_done(folder / name, config)}
    if options.jobs == 1:
        for name, config in missing.items():
            train(config, folder / name, root=options.root, resume=True)
    else:
        _side_by_side(missing, folder, options)
    networks = _QUICK if options.quick else _FULL
    data = {
        "networks": {
            network: {**settings, "ways": {way: _read(folder / f"{network}-{way}") for way in WAYS}}
            for network, settings in networks.items()
        }
    }
    return Result(data, markdown(TITLE, data), plot(out, NAME, data))


def cases(options: Options) -> dict[str, Config]:
    """The runs by the names of their folders."""
    networks = _QUICK if options.quick else _FULL
    return {
        f"{network}-{way}": Config(network=network, device=options.device, **_PLAIN, **settings, **choice)
        for network, settings in networks.items()
        for way, choice in WAYS.items()
    }


def _is_done(place: Path, config: Config) -> bool:
    """Whether a folder holds the result of just this run, which may have been made on another device."""
    result = place / "result.json"
    if not result.exists():
        return False
    return bool(json.loads(result.read_text())["config"] | {"device": config.device} == config.as_dict())


def _side_by_side(missing: Mapping[str, Config], folder: Path, options: Options) -> None:
    """Train each case in a process of its own, some at a time; what they say goes to files."""
    folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}

    def start(name: str) -> int:
        log = folder / f"{name}.log"
        with log.open("w") as file:
            return subprocess.run(
                [sys.executable, "-m", *command(missing[name], folder / name, options.root)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                check=False,
            ).returncode

    with ThreadPoolExecutor(options.jobs) as pool:
        statuses = dict(zip(missing, pool.map(start, missing), strict=True))
    failed = [str(folder / f"{name}.log") for name, status in statuses.items() if status]
    if failed:
        raise UserError(f"{len(failed)} of the training runs failed: read {', '.join(failed)}")


def command(config: Config, place: Path, root: Path | None) -> list[str]:
    """The command that trains one case."""
    return [
        *shlex.split(config.command),
        *("--out", str(place), "--resume"),
        *(() if root is None else ("--root", str(root))),
    ]


def _read(place: Path) -> dict[str, Any]:
    """What a run has given."""
    found = json.loads((place / "result.json").read_text())
    kept = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
    return {
        "command": found["command"],
        "torch": found["torch"],
        "test": {name: _rounded(figure) for name, figure in found["test"].items()},
        **{name: [_rounded(row[name]) for row in found["history"]] for name in kept},
    }


def _rounded(x: float) -> float:
    return float(f"{x:.5g}")
