"""One module for each figure or table of the paper, and for ours beside it; `EXPERIMENTS` has them all."""

from pathlib import Path
from typing import Protocol

from momentprop.experiments.options import DEFAULTS, Options
from momentprop.experiments.paper import (
    accuracy_cifar,
    accuracy_lenet,
    activations,
    and_gate,
    calibration,
    calibration_posterior,
    calibration_transfer,
    dataset_statistics,
    density,
    dropout,
    first_figure,
    kl_bias,
    noisy_inputs,
    normalization,
    or_gate,
    pea,
    regression,
    relu_mean,
    stability,
    stability_deep,
    truth,
)
from momentprop.experiments.result import Result


class Experiment(Protocol):
    """What the module of an experiment has."""

    NAME: str
    TITLE: str

    def run(self, out: Path, options: Options = DEFAULTS) -> Result:
        """Compute the numbers and draw the figures into a folder."""
        ...


_ALL: tuple[Experiment, ...] = (
    first_figure,
    and_gate,
    or_gate,
    pea,
    density,
    kl_bias,
    activations,
    relu_mean,
    truth,
    accuracy_lenet,
    accuracy_cifar,
    dataset_statistics,
    normalization,
    calibration,
    calibration_transfer,
    calibration_posterior,
    noisy_inputs,
    dropout,
    stability,
    stability_deep,
    regression,
)

EXPERIMENTS: dict[str, Experiment] = {experiment.NAME: experiment for experiment in _ALL}
"""The experiments by the names that `momentprop paper` knows."""

NEED_DATA = (
    accuracy_lenet.NAME,
    accuracy_cifar.NAME,
    dataset_statistics.NAME,
    normalization.NAME,
    calibration.NAME,
    calibration_transfer.NAME,
    calibration_posterior.NAME,
    noisy_inputs.NAME,
    dropout.NAME,
    stability.NAME,
    stability_deep.NAME,
    regression.NAME,
)
"""Those that need a data set to be there; `momentprop paper all` leaves them out."""
