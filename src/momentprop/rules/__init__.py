"""Rules: how each operation acts on each type of value. Importing this package fills the table.

`python -m momentprop.rules` prints it.
"""

# ruff: noqa: F401 (the modules are imported for what they register)

from momentprop.dispatch import Rule, table
from momentprop.rules import independent as _independent
from momentprop.rules import recurrent as _recurrent
from momentprop.rules.attention import attention as _attention_attention
from momentprop.rules.elementwise import clip as _elementwise_clip
from momentprop.rules.elementwise import exponential as _elementwise_exponential
from momentprop.rules.elementwise import families as _elementwise_families
from momentprop.rules.elementwise import gelu as _elementwise_gelu
from momentprop.rules.elementwise import normal_cdf as _elementwise_normal_cdf
from momentprop.rules.elementwise import piecewise as _elementwise_piecewise
from momentprop.rules.elementwise import power as _elementwise_power
from momentprop.rules.elementwise import rectifier as _elementwise_rectifier
from momentprop.rules.elementwise import sigmoid as _elementwise_sigmoid
from momentprop.rules.elementwise import smooth_rectifier as _elementwise_smooth_rectifier
from momentprop.rules.elementwise import threshold as _elementwise_threshold
from momentprop.rules.joint import attention as _joint_attention
from momentprop.rules.joint import full as _joint_full
from momentprop.rules.joint import kinds as _joint_kinds
from momentprop.rules.joint import mixing as _joint_mixing
from momentprop.rules.joint import noise as _joint_noise
from momentprop.rules.joint import posterior as _joint_posterior
from momentprop.rules.linear import arithmetic as _linear_arithmetic
from momentprop.rules.linear import averaging as _linear_averaging
from momentprop.rules.linear import batch_norm as _linear_batch_norm
from momentprop.rules.linear import bilinear as _linear_bilinear
from momentprop.rules.linear import convolution as _linear_convolution
from momentprop.rules.linear import creation as _linear_creation
from momentprop.rules.linear import einsum as _linear_einsum
from momentprop.rules.linear import embedding as _linear_embedding
from momentprop.rules.linear import products as _linear_products
from momentprop.rules.linear import resampling as _linear_resampling
from momentprop.rules.linear import scatter as _linear_scatter
from momentprop.rules.linear import shape as _linear_shape
from momentprop.rules.losses import binary as _losses_binary
from momentprop.rules.losses import classes as _losses_classes
from momentprop.rules.losses import margins as _losses_margins
from momentprop.rules.losses import regression as _losses_regression
from momentprop.rules.noise import dropout as _noise_dropout
from momentprop.rules.noise import stochastic_units as _noise_stochastic_units
from momentprop.rules.reductions import angle as _reductions_angle
from momentprop.rules.reductions import categorical as _reductions_categorical
from momentprop.rules.reductions import choices as _reductions_choices
from momentprop.rules.reductions import dispersion as _reductions_dispersion
from momentprop.rules.reductions import linear_posterior as _reductions_linear_posterior
from momentprop.rules.reductions import logsumexp as _reductions_logsumexp
from momentprop.rules.reductions import max_pooling as _reductions_max_pooling
from momentprop.rules.reductions import maximum as _reductions_maximum
from momentprop.rules.reductions import normalization as _reductions_normalization
from momentprop.rules.reductions import power_pooling as _reductions_power_pooling
from momentprop.rules.reductions import softmax as _reductions_softmax
from momentprop.rules.statistics import elementwise as _statistics_elementwise
from momentprop.rules.statistics import kinds as _statistics_kinds
from momentprop.rules.statistics import mixing as _statistics_mixing
from momentprop.rules.statistics import norms as _statistics_norms
from momentprop.rules.statistics import shapes as _statistics_shapes

__all__ = ["Rule", "table"]
