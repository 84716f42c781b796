"""All experiments: one module for each table or figure, the paper's and our own."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.accuracy import (
    accuracy_cifar,
    accuracy_lenet,
    accuracy_scales,
    first_figure,
)
from momentprop_experiments.reproduction.calibration import (
    calibration_held_out,
    calibration_posterior,
    calibration_transfer,
)
from momentprop_experiments.reproduction.correlation import correlation
from momentprop_experiments.reproduction.dataset_statistics import dataset_statistics
from momentprop_experiments.reproduction.dropout import dropout, dropout_cause
from momentprop_experiments.reproduction.gates import and_gate, or_gate
from momentprop_experiments.reproduction.generative import decoder
from momentprop_experiments.reproduction.gradients import gradient_depth
from momentprop_experiments.reproduction.inference import inference
from momentprop_experiments.reproduction.logistic_units import density, kl_bias, pea, random_networks
from momentprop_experiments.reproduction.noisy_inputs import noisy_inputs
from momentprop_experiments.reproduction.nonlinearities import activations, fit_of_t, max_correlation, relu_mean
from momentprop_experiments.reproduction.normalization import normalization_runs
from momentprop_experiments.reproduction.outcome import Outcome
from momentprop_experiments.reproduction.regression import regression
from momentprop_experiments.reproduction.running_times import running_times
from momentprop_experiments.reproduction.stability import attack_strength, stability, stability_deep


class Experiment(Protocol):
    """The contents of an experiment's module."""

    NAME: str
    TITLE: str

    def run(self, out: Path, options: Options = DEFAULTS) -> Outcome:
        """Compute the numbers and draw the figures into a folder."""
        ...


@runtime_checkable
class Reporting(Protocol):
    """The further contents of an experiment's module if its table and figure can be made again from its numbers."""

    def markdown(self, title: str, data: dict[str, Any]) -> str:
        """Return the whole report in Markdown."""
        ...

    def plot(self, out: Path, name: str, data: dict[str, Any]) -> list[Path]:
        """Draw the figure into a folder."""
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
    fit_of_t,
    max_correlation,
    random_networks,
    inference,
    running_times,
    gradient_depth,
    decoder,
    accuracy_lenet,
    accuracy_cifar,
    accuracy_scales,
    dataset_statistics,
    normalization_runs,
    calibration_held_out,
    calibration_transfer,
    calibration_posterior,
    correlation,
    noisy_inputs,
    dropout,
    dropout_cause,
    stability,
    stability_deep,
    attack_strength,
    regression,
)

EXPERIMENTS: dict[str, Experiment] = {experiment.NAME: experiment for experiment in _ALL}
"""The experiments by their names in `momentprop paper`."""

NEED_DATA = (
    accuracy_lenet.NAME,
    accuracy_cifar.NAME,
    accuracy_scales.NAME,
    dataset_statistics.NAME,
    normalization_runs.NAME,
    calibration_held_out.NAME,
    calibration_transfer.NAME,
    calibration_posterior.NAME,
    correlation.NAME,
    noisy_inputs.NAME,
    dropout.NAME,
    dropout_cause.NAME,
    stability.NAME,
    stability_deep.NAME,
    attack_strength.NAME,
    regression.NAME,
)
"""The experiments that need a downloaded data set; `momentprop paper all` leaves them out."""

ON_CPU = (*(name for name in EXPERIMENTS if name not in (*NEED_DATA, running_times.NAME)), regression.NAME)
"""The experiments that compute on the CPU, whatever the device of the others: their networks are small."""
