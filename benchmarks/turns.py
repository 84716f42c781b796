"""Contenders that take turns on a clock, so that other work on the machine affects all alike."""

import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from normalization import quartiles, rounded

Run = Callable[[], Any]

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Clock:
    """How long to measure: at least three rounds, at most `rounds`, and about `seconds` in all.

    A contender runs as often in a turn as fits into `turn` seconds, and at least once.
    """

    rounds: int = 21
    seconds: float = 10.0
    turn: float = 0.02
    warm_up: int = 3


QUICK = Clock(rounds=3, seconds=1.0, turn=0.002, warm_up=1)
"""A clock that shows that all runs, and little more."""


def take_turns(runs: Mapping[str, Run], clock: Clock) -> list[dict[str, float]]:
    """Return the seconds of every contender, for each round; the order of a round is that of the last one reversed."""
    for run in runs.values():
        timed(run, clock.warm_up)
    repeats = {name: max(1, min(1000, round(clock.turn / timed(run)))) for name, run in runs.items()}
    rounds: list[dict[str, float]] = []
    started = time.perf_counter()
    while len(rounds) < clock.rounds and (len(rounds) < 3 or time.perf_counter() - started < clock.seconds):
        order = list(runs)[:: -1 if len(rounds) % 2 else 1]
        rounds.append({name: timed(runs[name], repeats[name]) for name in order})
    return rounds


def timed(run: Run, repeats: int = 1) -> float:
    """Return the mean seconds of some runs, until the device has finished them."""
    wait()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    wait()
    return (time.perf_counter() - started) / repeats


def wait() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ratio(rounds: list[dict[str, float]], one: str, other: str) -> dict[str, Any]:
    """Return the quartiles of a ratio over rounds, and the median milliseconds of both contenders."""
    return {
        "measured": [rounded(x) for x in quartiles([each[one] / each[other] for each in rounds])],
        "milliseconds": [milliseconds(rounds, one), milliseconds(rounds, other)],
        "rounds": len(rounds),
    }


def milliseconds(rounds: list[dict[str, float]], name: str) -> float:
    """Return the median milliseconds of a contender."""
    return rounded(1e3 * statistics.median(each[name] for each in rounds))


def about() -> dict[str, Any]:
    """Return the versions, the commit and the number of threads that go with measurements."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "threads": torch.get_num_threads(),
        "processor": processor(),
    }


def commit() -> str:
    """Return the commit that was measured, with a mark if files differ from it."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:  # a machine without git
        return "unknown"
    return found.stdout.strip() or "unknown"


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
