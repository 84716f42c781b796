"""Values: random tensors whose type chooses the method of propagation."""

from momentprop.values.base import Value, set_default_validate_args
from momentprop.values.categorical import Categorical
from momentprop.values.certain import Certain, Mean, Sample
from momentprop.values.estimate import Estimate, JointEstimate
from momentprop.values.full import Full
from momentprop.values.independent import Independent
from momentprop.values.joint import Joint
from momentprop.values.normal import Fitted, Logistic, Normal
from momentprop.values.predictions import Predictions
from momentprop.values.statistics import Statistics
from momentprop.values.uncertain import Uncertain

__all__ = [
    "Categorical",
    "Certain",
    "Estimate",
    "Fitted",
    "Full",
    "Independent",
    "Joint",
    "JointEstimate",
    "Logistic",
    "Mean",
    "Normal",
    "Predictions",
    "Sample",
    "Statistics",
    "Uncertain",
    "Value",
    "set_default_validate_args",
]
