"""Training runs of an experiment, each kept in a folder of its own: what is there already is not trained again."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from momentprop.errors import UserError
from momentprop.sampling import progress
from momentprop.training.settings import MAY_CHANGE
from momentprop_experiments.options import Options
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import train

_STOPPED = None  # in the place of a process's status
_LOOK = 2.0  # seconds between two looks at what runs have done


def complete(wanted: Mapping[str, Config], folder: Path, options: Options) -> list[str]:
    """Train what is not yet trained, and return the names of those that the time limit has left undone."""
    missing = {name: config for name, config in wanted.items() if not is_done(folder / name, config)}
    if options.jobs == 1 and options.minutes is None:
        for count, (name, config) in enumerate(missing.items(), start=1):
            print(f"{name} ({count} of {len(missing)} runs)", file=sys.stderr, flush=True)
            train(config, folder / name, root=options.root, resume=True)
        return []
    return _side_by_side(missing, folder, options)


def complete_all(wanted: Mapping[str, Config], folder: Path, options: Options) -> None:
    """Train what is not yet trained; an error says what the time limit has left undone."""
    left = complete(wanted, folder, options)
    if left:
        raise UserError(
            f"the time is over, and {len(left)} of {len(wanted)} runs are not done: the same command goes on with them"
        )


def is_done(place: Path, config: Config) -> bool:
    """Whether a folder holds the result of just this run; what changes no figure, as the device, may differ."""
    result = place / "result.json"
    if not result.exists():
        return False
    found = Config.from_dict(json.loads(result.read_text())["config"])
    free = {name: getattr(config, name) for name in MAY_CHANGE - {"epochs"}}
    return dataclasses.replace(found, **free) == config


def history(place: Path) -> list[dict[str, Any]]:
    """The rows of the epochs that a run has done so far."""
    for name in ("result.json", "checkpoint.json"):
        if (place / name).exists():
            found: list[dict[str, Any]] = json.loads((place / name).read_text())["history"]
            return found
    return []


def _side_by_side(missing: Mapping[str, Config], folder: Path, options: Options) -> list[str]:
    """Train each case in a process of its own, some at a time; what they say goes to files."""
    folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    environment = {"OMP_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": threads, **os.environ}
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes

    def start(name: str) -> int | None:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            return _STOPPED
        with (folder / f"{name}.log").open("w") as file:
            try:
                return subprocess.run(  # which ends the process after that time: it goes on from its checkpoint
                    [sys.executable, "-m", *command(missing[name], folder / name, options.root)],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    check=False,
                    timeout=left,
                ).returncode
            except subprocess.TimeoutExpired:
                return _STOPPED
            finally:
                if not sys.stderr.isatty():  # where no bar is to be seen
                    epochs = f"{len(history(folder / name))} of {missing[name].epochs} epochs"
                    print(f"{name}: {epochs}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {name: pool.submit(start, name) for name in missing}
        try:
            _watch(futures.values(), missing, folder)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # an interrupted command starts nothing more
            raise
    statuses = {name: future.result() for name, future in futures.items()}
    failed = [str(folder / f"{name}.log") for name, status in statuses.items() if status]
    if failed:
        raise UserError(f"{len(failed)} of the training runs failed: read {', '.join(failed)}")
    return [name for name, status in statuses.items() if status is _STOPPED]


def _watch(running: Collection[Future[int | None]], missing: Mapping[str, Config], folder: Path) -> None:
    """Show the epochs of all runs until they end."""
    seen = 0
    with progress(sum(config.epochs for config in missing.values()), f"epochs of {len(missing)} runs") as bar:
        while running:
            running = wait(running, timeout=_LOOK).not_done
            done = sum(len(history(folder / name)) for name in missing)
            bar.update(done - seen)
            seen = done


def command(config: Config, place: Path, root: Path | None) -> list[str]:
    """The command that trains one case."""
    return [
        *shlex.split(config.command),
        *("--out", str(place), "--resume"),
        *(() if root is None else ("--root", str(root))),
    ]
