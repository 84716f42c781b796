"""Operations that torch lacks, as functions of tensors and values alike."""

from momentprop.functional.maximum import max_with_covariance as max_with_covariance
from momentprop.functional.maximum import maximum_of as maximum_of
from momentprop.functional.maximum import maxout as maxout
from momentprop.functional.noise import add_noise as add_noise
from momentprop.functional.noise import multiply_noise as multiply_noise
from momentprop.functional.noise import stochastic_depth as stochastic_depth
from momentprop.functional.posterior import class_posterior as class_posterior
from momentprop.functional.posterior import joint_posterior as joint_posterior
from momentprop.functional.posterior import linear_posterior as linear_posterior
from momentprop.functional.stochastic_units import binary_step as binary_step
from momentprop.functional.stochastic_units import gumbel_argmax as gumbel_argmax
from momentprop.functional.stochastic_units import logistic_bernoulli as logistic_bernoulli
from momentprop.functional.stochastic_units import noisy_activation as noisy_activation
from momentprop.functional.stochastic_units import probit_bernoulli as probit_bernoulli
from momentprop.functional.stochastic_units import stochastic_binary as stochastic_binary
