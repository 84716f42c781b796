r"""Stochastic layers that torch lacks: latent variable models $Y = f(X - Z)$, injected noise, categorical outputs.

Each layer accepts every kind of value: a `Mean` gives the expectation at the mean (AP1), a `Normal` the moments (AP2),
a `Sample` a draw. On a tensor it behaves like dropout: it draws in training mode and returns $E[Y \mid x]$ in
evaluation mode.
"""

from momentprop.nn.analytic_norm import AnalyticNorm
from momentprop.nn.binary import Heaviside, LogisticBernoulli, Probit, Sign, StochasticBinary
from momentprop.nn.classes import GumbelArgmax, Maxout, Softmax
from momentprop.nn.noise import (
    AdditiveNoise,
    GaussianNoise,
    MultiplicativeNoise,
    NoisyActivation,
    StochasticDepth,
    StochasticReLU,
)
from momentprop.noise.score_function import ScoreFunction

__all__ = [
    "AdditiveNoise",
    "AnalyticNorm",
    "GaussianNoise",
    "GumbelArgmax",
    "Heaviside",
    "LogisticBernoulli",
    "Maxout",
    "MultiplicativeNoise",
    "NoisyActivation",
    "Probit",
    "ScoreFunction",
    "Sign",
    "Softmax",
    "StochasticBinary",
    "StochasticDepth",
    "StochasticReLU",
]
