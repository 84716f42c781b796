"""momentprop carries the mean and the variance of every unit through a network, in one forward pass."""

from momentprop import belief, built_kernels, functional, nn, paper, posteriors, rules
from momentprop.as_tensors import AsTensors
from momentprop.calibration import Calibration, CalibrationWarning, calibrate, calibrated
from momentprop.checking import check
from momentprop.dispatch import DependenceWarning, Kind, MissingRule, operation, rule
from momentprop.dispatch import Operand as _Operand
from momentprop.dispatch import values_in as _values_in
from momentprop.dispatch import where as _where
from momentprop.functional.elementwise import elementwise
from momentprop.joint_outputs import CorrelationWarning
from momentprop.lognormal_model import ModelChangeWarning
from momentprop.normalization import dataset_statistics, fold, initialize, input_statistics, normalize
from momentprop.nothing_random import NothingRandomWarning
from momentprop.propagate import propagate
from momentprop.renamed import keep_modules as _keep_modules
from momentprop.repeated import repeated
from momentprop.rules.precision import variance_precision
from momentprop.to_onnx import to_onnx
from momentprop.torch_compat import install as _install
from momentprop.torch_compat.guard import UnknownTorchWarning
from momentprop.values import (
    Categorical,
    Estimate,
    Fitted,
    Joint,
    Logistic,
    Mean,
    Normal,
    Sample,
    Statistics,
    set_default_validate_args,
)
from momentprop.weights import with_weights

_install(_Operand, _values_in, _where)
_keep_modules()

__all__ = [
    "AsTensors",
    "Calibration",
    "CalibrationWarning",
    "Categorical",
    "CorrelationWarning",
    "DependenceWarning",
    "Estimate",
    "Fitted",
    "Joint",
    "Kind",
    "Logistic",
    "Mean",
    "MissingRule",
    "ModelChangeWarning",
    "Normal",
    "NothingRandomWarning",
    "Sample",
    "Statistics",
    "UnknownTorchWarning",
    "belief",
    "built_kernels",
    "calibrate",
    "calibrated",
    "check",
    "dataset_statistics",
    "elementwise",
    "fold",
    "functional",
    "initialize",
    "input_statistics",
    "nn",
    "normalize",
    "operation",
    "paper",
    "posteriors",
    "propagate",
    "repeated",
    "rule",
    "rules",
    "set_default_validate_args",
    "to_onnx",
    "variance_precision",
    "with_weights",
]
