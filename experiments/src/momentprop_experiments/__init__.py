"""Experiments with momentprop: named networks, training runs, the tables and figures of the paper, and the demo.

The package lies beside the library, not in its wheel. It adds the commands `train`, `paper` and `demo` to `momentprop`.
"""

from momentprop_experiments.runs.config import Config as Config
from momentprop_experiments.runs.training_run import Result as Result
from momentprop_experiments.runs.training_run import load_model as load_model
from momentprop_experiments.runs.training_run import save_halved as save_halved
from momentprop_experiments.runs.training_run import train as train
