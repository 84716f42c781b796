"""Values: random tensors whose type chooses the method of propagation."""

from momentprop.values.base import Value as Value
from momentprop.values.base import set_default_validate_args as set_default_validate_args
from momentprop.values.categorical import Categorical as Categorical
from momentprop.values.certain import Certain as Certain
from momentprop.values.certain import Mean as Mean
from momentprop.values.certain import Sample as Sample
from momentprop.values.estimate import Estimate as Estimate
from momentprop.values.estimate import JointEstimate as JointEstimate
from momentprop.values.full import Full as Full
from momentprop.values.independent import Independent as Independent
from momentprop.values.joint import Joint as Joint
from momentprop.values.normal import Fitted as Fitted
from momentprop.values.normal import Logistic as Logistic
from momentprop.values.normal import Normal as Normal
from momentprop.values.statistics import Statistics as Statistics
from momentprop.values.uncertain import Uncertain as Uncertain
