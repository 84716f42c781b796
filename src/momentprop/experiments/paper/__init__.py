"""One module for each figure or table of the paper; `EXPERIMENTS` has them all."""

from pathlib import Path
from typing import Protocol

from momentprop.experiments.paper import (
    activations,
    and_gate,
    density,
    kl_bias,
    or_gate,
    pea,
    relu_mean,
    truth,
)
from momentprop.experiments.result import Result


class Experiment(Protocol):
    """What the module of an experiment has."""

    NAME: str
    TITLE: str

    def run(self, out: Path, quick: bool = False) -> Result:
        """Compute the numbers and draw the figures into a folder; `quick` takes fewer draws."""
        ...


_ALL: tuple[Experiment, ...] = (and_gate, or_gate, pea, density, kl_bias, activations, relu_mean, truth)

EXPERIMENTS: dict[str, Experiment] = {experiment.NAME: experiment for experiment in _ALL}
"""The experiments by the names that `momentprop paper` knows."""
