"""What the caller of an experiment can choose."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """How to run an experiment; most of them look at `quick` only."""

    quick: bool = False  # few draws, to see that it works
    root: Path | None = None  # the folder of the data sets, as `momentprop.data.load` takes it
    networks: Path | None = None  # the folder of trained networks; by default that of the repository
    device: str = "auto"  # where to compute: a GPU if there is one
    runs: Path = Path("runs")  # the folder of training runs, which are taken up again if they are there
    jobs: int = 1  # training runs side by side
    minutes: float | None = None  # after which training stops, to go on another time


DEFAULTS = Options()
"""Everything in full, with what is at hand."""
