"""Rules: how each operation acts on each type of value. Importing this package fills the table.

`python -m momentprop.rules` prints it.
"""

# ruff: noqa: F401 (the modules are imported for what they register)

from momentprop.dispatch import Rule as Rule
from momentprop.dispatch import table as table
from momentprop.rules import arithmetic as _arithmetic
from momentprop.rules import attention as _attention
from momentprop.rules import averaging as _averaging
from momentprop.rules import bilinear as _bilinear
from momentprop.rules import categorical as _categorical
from momentprop.rules import clip as _clip
from momentprop.rules import creation as _creation
from momentprop.rules import dispersion as _dispersion
from momentprop.rules import dropout as _dropout
from momentprop.rules import einsum as _einsum
from momentprop.rules import embedding as _embedding
from momentprop.rules import exponential as _exponential
from momentprop.rules import families as _families
from momentprop.rules import gelu as _gelu
from momentprop.rules import linear as _linear
from momentprop.rules import linear_posterior as _linear_posterior
from momentprop.rules import logsumexp as _logsumexp
from momentprop.rules import losses as _losses
from momentprop.rules import margins as _margins
from momentprop.rules import max_pooling as _max_pooling
from momentprop.rules import maximum as _maximum
from momentprop.rules import normal_cdf as _normal_cdf
from momentprop.rules import normalization as _normalization
from momentprop.rules import piecewise as _piecewise
from momentprop.rules import power as _power
from momentprop.rules import power_pooling as _power_pooling
from momentprop.rules import rectifier as _rectifier
from momentprop.rules import recurrent as _recurrent
from momentprop.rules import resampling as _resampling
from momentprop.rules import scatter as _scatter
from momentprop.rules import shape as _shape
from momentprop.rules import sigmoid as _sigmoid
from momentprop.rules import smooth_rectifier as _smooth_rectifier
from momentprop.rules import softmax as _softmax
from momentprop.rules import statistics as _statistics
from momentprop.rules import statistics_elementwise as _statistics_elementwise
from momentprop.rules import statistics_norms as _statistics_norms
from momentprop.rules import statistics_shapes as _statistics_shapes
from momentprop.rules import threshold as _threshold
from momentprop.rules import units as _units
