"""Operations that torch lacks, as functions of tensors and values alike."""

from momentprop.functional.maximum import max_with_covariance, maximum_of, maxout
from momentprop.functional.noise import add_noise, multiply_noise, stochastic_depth
from momentprop.functional.posterior import class_posterior, joint_posterior, linear_posterior
from momentprop.functional.stochastic_units import (
    binary_step,
    gumbel_argmax,
    logistic_bernoulli,
    noisy_activation,
    probit_bernoulli,
    stochastic_binary,
)

__all__ = [
    "add_noise",
    "binary_step",
    "class_posterior",
    "gumbel_argmax",
    "joint_posterior",
    "linear_posterior",
    "logistic_bernoulli",
    "max_with_covariance",
    "maximum_of",
    "maxout",
    "multiply_noise",
    "noisy_activation",
    "probit_bernoulli",
    "stochastic_binary",
    "stochastic_depth",
]
