"""Rules: how each operation acts on each type of value. Importing this package fills the table.

`python -m momentprop.rules` prints it.
"""

# ruff: noqa: F401 (the modules are imported for what they register)

from momentprop.dispatch import Rule as Rule
from momentprop.dispatch import table as table
from momentprop.rules import recurrent as _recurrent
from momentprop.rules.attention import attention as _attention
from momentprop.rules.elementwise import clip as _clip
from momentprop.rules.elementwise import exponential as _exponential
from momentprop.rules.elementwise import families as _families
from momentprop.rules.elementwise import gelu as _gelu
from momentprop.rules.elementwise import normal_cdf as _normal_cdf
from momentprop.rules.elementwise import piecewise as _piecewise
from momentprop.rules.elementwise import power as _power
from momentprop.rules.elementwise import rectifier as _rectifier
from momentprop.rules.elementwise import sigmoid as _sigmoid
from momentprop.rules.elementwise import smooth_rectifier as _smooth_rectifier
from momentprop.rules.elementwise import threshold as _threshold
from momentprop.rules.linear import arithmetic as _arithmetic
from momentprop.rules.linear import averaging as _averaging
from momentprop.rules.linear import bilinear as _bilinear
from momentprop.rules.linear import creation as _creation
from momentprop.rules.linear import einsum as _einsum
from momentprop.rules.linear import embedding as _embedding
from momentprop.rules.linear import products as _linear
from momentprop.rules.linear import resampling as _resampling
from momentprop.rules.linear import scatter as _scatter
from momentprop.rules.linear import shape as _shape
from momentprop.rules.losses import losses as _losses
from momentprop.rules.losses import margins as _margins
from momentprop.rules.noise import dropout as _dropout
from momentprop.rules.noise import units as _units
from momentprop.rules.reductions import categorical as _categorical
from momentprop.rules.reductions import dispersion as _dispersion
from momentprop.rules.reductions import linear_posterior as _linear_posterior
from momentprop.rules.reductions import logsumexp as _logsumexp
from momentprop.rules.reductions import max_pooling as _max_pooling
from momentprop.rules.reductions import maximum as _maximum
from momentprop.rules.reductions import normalization as _normalization
from momentprop.rules.reductions import power_pooling as _power_pooling
from momentprop.rules.reductions import softmax as _softmax
from momentprop.rules.statistics import elementwise as _statistics_elementwise
from momentprop.rules.statistics import mixing as _statistics
from momentprop.rules.statistics import norms as _statistics_norms
from momentprop.rules.statistics import shapes as _statistics_shapes
