r"""One pixel through activations: averages over a grid, which take few operations of few elements.

The rules of `Normal` are made for accuracy over many orders of magnitude, and take hundreds of operations; before every
training step that is too much. Here $E\,f(X) = \sum_k w_k f(\mu + \sigma z_k)$ with the trapezoidal rule for a standard
normal variable, which is off by $10^{-3}\sigma$ at most, at kinks. The rectifiers have the textbook's closed form, and
functions that jump the rules of `Normal`.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from momentprop.dispatch import find, rule
from momentprop.functional.stochastic_units import Gradient, LogisticMethod, between
from momentprop.kernels.constants import constant
from momentprop.kernels.fuse import fused
from momentprop.kernels.textbook_rectifier import leaky_rectifier
from momentprop.noise.named import named, standard
from momentprop.rules.noise import units as _units  # noqa: F401 (its rule is looked up below)
from momentprop.values import Normal, Statistics
from momentprop.values.origin import combined

_STEP, _COUNT = 0.1, 128
_NODES = tuple(
    _STEP * (i - _COUNT / 2 + 0.5) for i in range(_COUNT)
)  # not zero, where functions of zero mean have kinks
_WEIGHTS = tuple(_STEP * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in _NODES)


def _over_grid(input: Statistics, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The function at the nodes, along a new last dimension, and the weights; in float32 at least."""
    kind = torch.promote_types(input.dtype, torch.float32)
    nodes, weights = constant((_NODES, _WEIGHTS), input.loc.to(kind))
    deviation = input.variance.to(kind).clamp(min=torch.finfo(kind).tiny).sqrt()  # of derivative zero at zero
    return function(torch.addcmul(input.loc.to(kind).unsqueeze(-1), deviation.unsqueeze(-1), nodes)), weights


def averaged(input: Statistics, function: Callable[[Tensor], Tensor]) -> Statistics:
    """Statistics of an elementwise function that is continuous."""
    y, weights = _over_grid(input, function)
    mean = y @ weights
    variance = (y - mean.unsqueeze(-1)).square() @ weights
    result = input.of(mean.to(input.dtype), variance.to(input.dtype))
    result.remember(combined(function, [input.source]))
    return result


def _register(op: str) -> None:
    plain: Any = find(op, Normal)
    function: Callable[..., Tensor] = getattr(torch, op, None) or getattr(F, op)
    names = list(inspect.signature(plain).parameters)[1:]

    @functools.wraps(plain)
    def activation(input: Statistics, *args: Any, **kwargs: Any) -> Statistics:
        settings = {**dict(zip(names, args, strict=False)), **kwargs}
        settings.pop("inplace", None)
        return averaged(input, functools.partial(function, **settings) if settings else function)

    activation.__doc__ = rf"""Statistics of `{op}`, by the trapezoidal rule.

        Error: 9e-4 of the deviation of the input at kinks, 1.1e-4 for smooth functions, for deviations up to 10
        Source: trapezoidal rule
        """
    rule(op, on=Statistics)(activation)


for _op in (
    "abs celu elu gelu hardsigmoid hardswish hardtanh mish relu6 selu sigmoid silu softplus softsign tanh"
).split():
    _register(_op)


@rule("leaky_relu", on=Statistics)
def leaky_relu(input: Statistics, negative_slope: float = 0.01, inplace: bool = False) -> Statistics:
    r"""Statistics of $\max(X, \alpha X)$, by those of the rectifier and its covariance $\sigma^2\Phi(a)$ with $X$.

    With $\beta = 1 - \alpha$ they are $\alpha\mu + \beta m$ and
    $\alpha^2\sigma^2 + \beta^2 s^2 + 2\alpha\beta\sigma^2\Phi(a)$.

    Error: 3e-6, of the deviation of the input for the mean, and of its variance for the variance
    Source: paper, "Max and Leaky ReLU"
    """
    plain = functools.partial(F.leaky_relu, negative_slope=negative_slope)
    result = input.of(*fused(leaky_rectifier(negative_slope), None, input.loc, input.variance))
    result.remember(combined(plain, [input.source]))
    return result


@rule("relu", on=Statistics)
def relu(input: Statistics, inplace: bool = False) -> Statistics:
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

    The methods of the paper have the rule of `Normal`.

    Error: 1e-6 for logistic noise and deviations up to 10
    Source: paper, "General Latent Variable Models"; trapezoidal rule
    """
    if method not in (None, "exact"):
        plain: Any = find("stochastic_binary", Normal)
        return plain(input, noise, low, high, method, gradient, training)  # type: ignore[no-any-return]
    own = standard(named(noise), input)
    y, weights = _over_grid(input, lambda x: own.cdf((x - own.loc) / own.scale))
    p = (y @ weights).to(input.dtype)
    return input.of(between(p, low, high), (high - low) ** 2 * p * (1 - p))
