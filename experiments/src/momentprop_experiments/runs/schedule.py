"""The training runs of an experiment, each in its own folder; finished runs are not trained again."""

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
from momentprop.files import ContentError, decoded
from momentprop.sampling import progress
from momentprop.training.settings import MAY_CHANGE
from momentprop_experiments.options import Options
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import train

_STOPPED = None  # instead of the exit status of a process
_LOOK = 2.0  # seconds between two checks of the runs' progress


def complete(wanted: Mapping[str, Config], folder: Path, options: Options) -> list[str]:
    """Train the missing runs, and return the names of those that the time limit left unfinished."""
    missing = {name: config for name, config in wanted.items() if not is_done(folder / name, config)}
    if options.jobs == 1 and options.minutes is None:
        for count, (name, config) in enumerate(missing.items(), start=1):
            print(f"{name} ({count} of {len(missing)} runs)", file=sys.stderr, flush=True)
            train(config, folder / name, root=options.root, resume=True)
        return []
    return _side_by_side(missing, folder, options)


def complete_all(wanted: Mapping[str, Config], folder: Path, options: Options) -> None:
    """Train the missing runs, or raise a `UserError` that counts those that the time limit left unfinished."""
    left = complete(wanted, folder, options)
    if left:
        raise UserError(
            f"the time is up: {len(left)} of {len(wanted)} runs are not done; run the same command again to resume"
        )


def is_done(place: Path, config: Config) -> bool:
    """Whether a folder holds the result of this run; settings that do not change it, such as the device, may differ."""
    result = place / "result.json"
    if not result.exists():
        return False
    found = Config.from_dict(_read(result, "config", dict[str, Any]))
    free = {name: getattr(config, name) for name in MAY_CHANGE - {"epochs"}}
    return dataclasses.replace(found, **free) == config


def history(place: Path) -> list[dict[str, Any]]:
    """Return the rows of the epochs that a run has finished."""
    for name in ("result.json", "checkpoint.json"):
        if (place / name).exists():
            found: list[dict[str, Any]] = _read(place / name, "history", list[Any])
            return found
    return []


def origin(place: Path, config: Config) -> dict[str, Any]:
    """Return the command of a run and what made it, as recorded by the run, not as in the present call."""
    if not is_done(place, config):
        return {"command": config.command, "made": None}
    found = decoded(dict[str, Any], json.loads((place / "result.json").read_text()), "it")
    return {"command": found["command"], "made": found.get("made")}


def _read(path: Path, name: str, kind: Any) -> Any:
    """Return an entry of a file of a run."""
    try:
        return decoded(kind, decoded(dict[str, Any], json.loads(path.read_text()), "it").get(name), name)
    except (ContentError, ValueError, RecursionError) as error:
        raise UserError(f"`{path}` is damaged: remove the folder of this run, or restore it ({error})") from error


def _side_by_side(missing: Mapping[str, Config], folder: Path, options: Options) -> list[str]:
    """Train each run in its own process, some at a time, with their output in log files."""
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
                return subprocess.run(  # kills the process after that time; it resumes from its checkpoint
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
                if not sys.stderr.isatty():  # nobody sees the progress bar
                    epochs = f"{len(history(folder / name))} of {missing[name].epochs} epochs"
                    print(f"{name}: {epochs}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {name: pool.submit(start, name) for name in missing}
        try:
            _watch(futures.values(), missing, folder)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # after an interrupt, start nothing more
            raise
    statuses = {name: future.result() for name, future in futures.items()}
    failed = [str(folder / f"{name}.log") for name, status in statuses.items() if status]
    if failed:
        raise UserError(f"{len(failed)} training runs failed: read {', '.join(failed)}")
    return [name for name, status in statuses.items() if status is _STOPPED]


def _watch(running: Collection[Future[int | None]], missing: Mapping[str, Config], folder: Path) -> None:
    """Show how many epochs all runs have finished, until they end."""
    seen = 0
    with progress(sum(config.epochs for config in missing.values()), f"epochs of {len(missing)} runs") as bar:
        while running:
            running = wait(running, timeout=_LOOK).not_done
            done = sum(len(history(folder / name)) for name in missing)
            bar.update(done - seen)
            seen = done


def command(config: Config, place: Path, root: Path | None) -> list[str]:
    """Return the command that trains one run."""
    return [
        *shlex.split(config.command),
        *("--out", str(place), "--resume"),
        *(() if root is None else ("--root", str(root))),
    ]
