"""What the benchmarks report about contenders that take turns, and how they were measured."""

import platform
import statistics
from pathlib import Path
from typing import Any

import torch
from normalization import quartiles, rounded

from momentprop_experiments import provenance
from momentprop_experiments.turns import Clock as Clock
from momentprop_experiments.turns import Run as Run
from momentprop_experiments.turns import take_turns as take_turns
from momentprop_experiments.turns import timed as timed
from momentprop_experiments.turns import wait as wait

ROOT = Path(__file__).parents[1]


QUICK = Clock(rounds=3, seconds=1.0, turn=0.002, warm_up=1)
"""A clock that only shows that everything runs."""


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
    """Return what tables say about measurements: versions, the commit, the processor and the number of threads."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "threads": torch.get_num_threads(),
        "processor": processor(),
    }


def commit() -> str:
    """Return the short name of the commit that is measured, with a mark if its source was changed since."""
    found = provenance.commit()
    if found is None:
        return "unknown"
    name, _, changed = found.partition(", ")
    return f"{name[:7]}-dirty" if changed else name[:7]


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
