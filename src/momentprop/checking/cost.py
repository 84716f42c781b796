"""What a method costs: its time in forward passes of the plain network."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

ROUNDS = 15
SECONDS = 3.0
"""Rounds are timed until there are so many, or so much time has passed, but three at least."""


def measured(plain: Callable[[], Any], methods: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The median over rounds of each method's time over that of the plain network in the same round.

    In a round all run one after the other, so that what else the machine does meets all of them alike.
    """
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    plain()  # the methods have run before
    start = time.perf_counter()
    for done in range(ROUNDS):
        if done >= 3 and time.perf_counter() - start > SECONDS:
            break
        unit = _seconds(plain)
        for name, method in methods.items():
            ratios[name].append(_seconds(method) / unit)
    return {name: statistics.median(found) for name, found in ratios.items()}


def _seconds(run: Callable[[], Any]) -> float:
    _finish()
    start = time.perf_counter()
    run()
    _finish()
    return time.perf_counter() - start


def _finish() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
