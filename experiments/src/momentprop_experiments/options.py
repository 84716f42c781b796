"""The options of an experiment."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from momentprop.training.distributed import as_device

Effort = TypeVar("Effort")


@dataclass(frozen=True)
class Options:
    """How to run an experiment; most experiments read `quick` only."""

    quick: bool = False  # few draws, to check that it works
    root: Path | None = None  # the folder of the data sets, as in `momentprop.data.load`
    networks: Path | None = None  # the folder of trained networks; by default that of the repository
    device: str = "auto"  # where to compute: on a GPU if there is one
    runs: Path = Path("runs")  # the folder of training runs, which resume if they are there already
    jobs: int = 1  # training runs in parallel
    minutes: float | None = None  # training stops after this time, and the next call resumes it
    images: int | None = None  # for `correlation`: how many to try; by default as many as suit the device
    missing: bool = False  # keep the training runs that the results already hold, and make only the others

    def choose(self, quick: Effort, on_cpu: Effort, full: Effort) -> Effort:
        """Return how much to measure: a little for a quick run, less on a CPU, or everything."""
        device = as_device(self.device)
        return quick if self.quick else on_cpu if device.type == "cpu" else full

    def runs_of(self, experiment: str) -> Path:
        """Return the folder of the training runs of an experiment; quick runs have their own."""
        return self.runs / (f"{experiment}-quick" if self.quick else experiment)


DEFAULTS = Options()
"""Everything in full, on the best device."""
