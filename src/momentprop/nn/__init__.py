r"""Stochastic layers that torch lacks: latent variable models $Y = f(X - Z)$, injected noise, categorical outputs.

Each layer accepts every kind of value: a `Mean` gives the expectation at the mean (AP1), a `Normal` the moments (AP2),
a `Sample` a draw. On a tensor it behaves like dropout: it draws in training mode and returns $E[Y \mid x]$ in
evaluation mode.
"""

from momentprop.nn.analytic_norm import AnalyticNorm as AnalyticNorm
from momentprop.nn.binary import Heaviside as Heaviside
from momentprop.nn.binary import LogisticBernoulli as LogisticBernoulli
from momentprop.nn.binary import Probit as Probit
from momentprop.nn.binary import Sign as Sign
from momentprop.nn.binary import StochasticBinary as StochasticBinary
from momentprop.nn.classes import GumbelArgmax as GumbelArgmax
from momentprop.nn.classes import Maxout as Maxout
from momentprop.nn.classes import Softmax as Softmax
from momentprop.nn.noise import AdditiveNoise as AdditiveNoise
from momentprop.nn.noise import GaussianNoise as GaussianNoise
from momentprop.nn.noise import MultiplicativeNoise as MultiplicativeNoise
from momentprop.nn.noise import NoisyActivation as NoisyActivation
from momentprop.nn.noise import StochasticDepth as StochasticDepth
from momentprop.nn.noise import StochasticReLU as StochasticReLU
from momentprop.noise.score_function import ScoreFunction as ScoreFunction
