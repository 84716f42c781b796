"""Experiments with momentprop: named networks, training runs, the tables and figures of the paper, and the demo.

The package is separate from the library and not in its wheel. It adds the commands `train`, `paper` and `demo` to
`momentprop`.
"""

from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import Result, load_model, save_halved, train

__all__ = ["Config", "Result", "load_model", "save_halved", "train"]
