"""The cost of a method: its processor time in forward passes of the plain network.

Unlike clock time, processor time does not depend on what else runs on the machine. It is measured in one thread,
because threads that wait for each other count as busy. On a GPU it is the time between two of its events.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from momentprop.codegen.programs import wait
from momentprop.values.structures import leaves_of

ROUNDS = 15
SECONDS = 3.0
"""Timing stops after `ROUNDS` rounds or `SECONDS` seconds, but not before one round."""

_LEAST = 2e-3  # seconds of the plain network in a round: it runs several times if it takes less


def measured(plain: Callable[[], Any], methods: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The time of each method over the plain network's in the same round, as the median over rounds.

    Builds of kernels that have begun finish first, so the price is not that of a first call.
    """
    wait()
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    with _one_thread():
        seconds = _clock(plain())  # to warm up; the methods have already run
        times = min(100, math.ceil(_LEAST / max(seconds(plain), 1e-6)))
        start = time.perf_counter()
        for done in range(ROUNDS):
            if done and time.perf_counter() - start > SECONDS:
                break
            unit = sum(seconds(plain) for _ in range(times)) / times
            for name, method in methods.items():
                ratios[name].append(seconds(method) / unit)
    return {name: statistics.median(found) for name, found in ratios.items()}


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _clock(output: Any) -> Callable[[Callable[[], Any]], float]:
    """Return what times a function, for a network with this output."""
    kinds = {leaf.device.type for leaf in leaves_of(output)}
    if "cuda" in kinds:
        return _on_gpu
    return _on_processor if kinds <= {"cpu"} else _by_the_clock


def _on_processor(run: Callable[[], Any]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def _on_gpu(run: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _by_the_clock(run: Callable[[], Any]) -> float:
    torch.accelerator.synchronize()
    start = time.perf_counter()
    run()
    torch.accelerator.synchronize()
    return time.perf_counter() - start
