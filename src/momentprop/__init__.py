"""momentprop carries the mean and the variance of every unit through a network, in one forward pass."""

from momentprop import belief as belief
from momentprop import built_kernels as built_kernels
from momentprop import functional as functional
from momentprop import nn as nn
from momentprop import paper as paper
from momentprop import rules as rules
from momentprop.as_tensors import AsTensors as AsTensors
from momentprop.calibration import Calibration as Calibration
from momentprop.calibration import CalibrationWarning as CalibrationWarning
from momentprop.calibration import calibrate as calibrate
from momentprop.calibration import calibrated as calibrated
from momentprop.checking import check as check
from momentprop.dispatch import DependenceWarning as DependenceWarning
from momentprop.dispatch import Kind as Kind
from momentprop.dispatch import MissingRule as MissingRule
from momentprop.dispatch import Operand as _Operand
from momentprop.dispatch import operation as operation
from momentprop.dispatch import rule as rule
from momentprop.dispatch import values_in as _values_in
from momentprop.dispatch import where as _where
from momentprop.functional.elementwise import elementwise as elementwise
from momentprop.joint_outputs import CorrelationWarning as CorrelationWarning
from momentprop.lognormal_model import ModelChangeWarning as ModelChangeWarning
from momentprop.normalization import dataset_statistics as dataset_statistics
from momentprop.normalization import fold as fold
from momentprop.normalization import initialize as initialize
from momentprop.normalization import input_statistics as input_statistics
from momentprop.normalization import normalize as normalize
from momentprop.propagate import propagate as propagate
from momentprop.repeated import repeated as repeated
from momentprop.rules.precision import variance_precision as variance_precision
from momentprop.torch_compat import install as _install
from momentprop.values import Categorical as Categorical
from momentprop.values import Estimate as Estimate
from momentprop.values import Fitted as Fitted
from momentprop.values import Joint as Joint
from momentprop.values import Logistic as Logistic
from momentprop.values import Mean as Mean
from momentprop.values import Normal as Normal
from momentprop.values import Sample as Sample
from momentprop.values import Statistics as Statistics
from momentprop.values import set_default_validate_args as set_default_validate_args

_install(_Operand, _values_in, _where)
