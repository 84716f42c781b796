"""Times contenders in turns, so other work on the machine affects all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Run = Callable[[], Any]
Rounds = list[dict[str, float]]


@dataclass(frozen=True)
class Clock:
    """How long to measure: three to `rounds` rounds, until about `seconds` have passed.

    In a turn a contender runs as often as fits into `turn` seconds, and at least once.
    """

    rounds: int = 21
    seconds: float = 10.0
    turn: float = 0.02
    warm_up: int = 3


def take_turns(runs: Mapping[str, Run], clock: Clock) -> Rounds:
    """Return the seconds of every contender in each round; each round reverses the order of the previous one.

    >>> [sorted(each) for each in take_turns({"a": lambda: 1, "b": lambda: 2}, Clock(rounds=3, turn=1e-5))]
    [['a', 'b'], ['a', 'b'], ['a', 'b']]
    """
    for run in runs.values():
        timed(run, clock.warm_up)
    repeats = {name: max(1, min(1000, round(clock.turn / timed(run)))) for name, run in runs.items()}
    rounds: Rounds = []
    started = time.perf_counter()
    while len(rounds) < clock.rounds and (len(rounds) < 3 or time.perf_counter() - started < clock.seconds):
        order = list(runs)[:: -1 if len(rounds) % 2 else 1]
        rounds.append({name: timed(runs[name], repeats[name]) for name in order})
    return rounds


def timed(run: Run, repeats: int = 1) -> float:
    """Return the mean seconds of some runs, including the device's work."""
    wait()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    wait()
    return (time.perf_counter() - started) / repeats


def ratios(rounds: Rounds, to: str) -> dict[str, list[float]]:
    """Return the quartiles of each contender's ratio to one of them, over rounds.

    >>> ratios([{"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 6.0}, {"a": 1.0, "b": 4.0}], "a")["b"]
    [2.5, 3.0, 3.5]
    """
    return {
        name: statistics.quantiles([each[name] / each[to] for each in rounds], n=4, method="inclusive")
        for name in rounds[0]
    }


def milliseconds(rounds: Rounds, name: str) -> float:
    """Return the median milliseconds of a contender."""
    return 1e3 * statistics.median(each[name] for each in rounds)


def wait() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
