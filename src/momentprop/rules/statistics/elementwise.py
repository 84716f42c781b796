r"""Rules of `Statistics` for activations: averages over a grid, with few operations on few elements.

The rules of `Normal` are accurate over many orders of magnitude but take hundreds of operations, too many for every
training step. Here $E\,f(X) = \sum_k w_k f(\mu + \sigma z_k)$ with the trapezoidal rule for a standard normal variable.
It is off by $10^{-3}\sigma$ at most, at kinks. The rectifiers use the textbook's closed form, and functions that jump
use the rules of `Normal`.
"""

import functools
import math
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from momentprop.dispatch import Transform, rule
from momentprop.dispatch.registry import elementwise
from momentprop.dispatch.rule_table import operation_named
from momentprop.functional.stochastic_units import Gradient, LogisticMethod, between
from momentprop.kernels.constants import constant
from momentprop.kernels.moments import Moments
from momentprop.kernels.textbook_rectifier import leaky_rectifier
from momentprop.noise.named import named, standard
from momentprop.rules.statistics.as_normal import as_normal
from momentprop.values import Normal, Statistics

_STEP, _COUNT = 0.1, 128
_NODES = tuple(
    _STEP * (i - _COUNT / 2 + 0.5) for i in range(_COUNT)
)  # avoids zero, where functions of zero mean have kinks
_WEIGHTS = tuple(_STEP * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in _NODES)


def _over_grid(mean: Tensor, variance: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the function at the nodes, along a new last dimension, and the weights, at least in float32."""
    kind = torch.promote_types(mean.dtype, torch.float32)
    nodes, weights = constant((_NODES, _WEIGHTS), mean.to(kind))
    deviation = variance.to(kind).clamp(min=torch.finfo(kind).tiny).sqrt()  # its derivative at zero is zero
    return function(torch.addcmul(mean.to(kind).unsqueeze(-1), deviation.unsqueeze(-1), nodes)), weights


def over_grid(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Moments]:
    """Return the kernel of an elementwise function that is continuous, by the trapezoidal rule."""

    def kernel(mean: Tensor, variance: Tensor) -> Moments:
        y, weights = _over_grid(mean, variance, function)
        average = y @ weights
        spread = (y - average.unsqueeze(-1)).square() @ weights
        return Moments(average.to(mean.dtype), spread.to(mean.dtype))

    return kernel


def _register(op: str) -> None:
    function: Callable[..., Tensor] = getattr(torch, op, None) or getattr(F, op)
    maker: Any = operation_named(op)
    names = list(signature(maker.makers[Normal]).parameters)[1:]

    def activation(input: Statistics, *args: Any, **kwargs: Any) -> Transform:
        settings = {**dict(zip(names, args, strict=False)), **kwargs}
        settings.pop("inplace", None)
        plain = functools.partial(function, **settings) if settings else function
        return Transform(over_grid(plain), plain, fused=False)

    activation.__name__ = op
    activation.__doc__ = rf"""Statistics of `{op}`, by the trapezoidal rule.

        Error: 9e-4 of the deviation of the input at kinks, 1.1e-4 for smooth functions, for deviations up to 10
        Source: trapezoidal rule
        """
    elementwise(op, on=Statistics)(activation)


for _op in (
    "abs celu elu gelu hardsigmoid hardswish hardtanh mish relu6 selu sigmoid silu softplus softsign tanh"
).split():
    _register(_op)


@elementwise("leaky_relu", on=Statistics)
def leaky_relu(input: Statistics, negative_slope: float = 0.01, inplace: bool = False) -> Transform:
    r"""Statistics of $\max(X, \alpha X)$, from the rectifier's and its covariance $\sigma^2\Phi(a)$ with $X$.

    With $\beta = 1 - \alpha$ they are $\alpha\mu + \beta m$ and
    $\alpha^2\sigma^2 + \beta^2 s^2 + 2\alpha\beta\sigma^2\Phi(a)$.

    Error: 3e-6, of the deviation of the input for the mean, and of its variance for the variance
    Source: paper, "Max and Leaky ReLU"
    """
    return Transform(leaky_rectifier(negative_slope), functools.partial(F.leaky_relu, negative_slope=negative_slope))


@elementwise("relu", on=Statistics)
def relu(input: Statistics, inplace: bool = False) -> Transform:
    r"""Statistics of $\max(0, X)$: $m = \mu\Phi(a) + \sigma\varphi(a)$ and $s^2 = \sigma^2\Phi(a) + m(\mu - m)$.

    Error: 3e-6, of the deviation of the input for the mean, and of its variance for the variance
    Source: paper, "ReLU"
    """
    return leaky_relu(input, 0.0)


@rule("stochastic_binary", on=Statistics)
def stochastic_binary(
    input: Statistics,
    noise: str | Distribution = "logistic",
    low: float = 0.0,
    high: float = 1.0,
    method: LogisticMethod | None = None,
    gradient: Gradient = "straight_through",
    training: bool = True,
) -> Statistics:
    r"""Statistics of a binary unit of noise $Z$: $\mu' = E\,F(X)$ and $\sigma'^2 = \mu'(1-\mu')$.

    The paper's methods use the rule of `Normal`.

    Error: 1e-6 for logistic noise and deviations up to 10
    Source: paper, "General Latent Variable Models"; trapezoidal rule
    """
    if method not in (None, "exact"):
        args = (input, noise, low, high, method, gradient, training)
        return as_normal("stochastic_binary", *args)  # type: ignore[no-any-return]
    own = standard(named(noise), input)
    y, weights = _over_grid(input.loc, input.variance, lambda x: own.cdf((x - own.loc) / own.scale))
    p = (y @ weights).to(input.dtype)
    return input.of(between(p, low, high), (high - low) ** 2 * p * (1 - p))
