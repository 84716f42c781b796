"""The cost of a method: its time in forward passes of the plain network."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

ROUNDS = 15
SECONDS = 3.0
"""Timing stops after `ROUNDS` rounds or `SECONDS` seconds, but not before three rounds."""


def measured(plain: Callable[[], Any], methods: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The time of each method over that of the plain network in the same round, as the median over rounds.

    Each round runs all of them one after the other, so that other load on the machine affects all alike.
    """
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    plain()  # warms up; the methods have already run
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
