r"""Stochastic units $Y = f(X - Z)$ with independent noise $Z$: binary, categorical, and noisy activations.

On a tensor they are drawn in training and replaced by their expectation $E[Y \mid x]$ otherwise, like dropout.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.distributions import Normal as NormalDistribution

from momentprop.dispatch import operation
from momentprop.dispatch.context import suspended
from momentprop.distributions import LogisticDistribution
from momentprop.functional.noise import draw_like, noise_moments
from momentprop.functional.posterior import PosteriorMethod
from momentprop.kernels.quantiles import expectation
from momentprop.noise.named import named, standard
from momentprop.noise.score_function import leave
from momentprop.values import Independent, Logistic, Normal

LogisticMethod = Literal["exact", "ap2a", "ap2b", "pea", "mackay"]
Gradient = Literal["straight_through", "score"]


def as_gradient(name: str) -> Gradient:
    """Check the name of a gradient estimator."""
    if name not in get_args(Gradient):
        raise ValueError(f"unknown gradient {name!r}; choose one of {', '.join(get_args(Gradient))}")
    return name  # type: ignore[return-value]


def as_method(name: str, noise: str) -> LogisticMethod:
    """Check the name of a method for a binary unit; `noise` is the name from `noise.named.standard`."""
    if name not in get_args(LogisticMethod):
        raise ValueError(f"unknown method {name!r}; choose one of {', '.join(get_args(LogisticMethod))}")
    if noise != "logistic" and name in ("pea", "mackay"):
        raise ValueError(f"method {name!r} is for logistic noise; choose 'exact', 'ap2a' or 'ap2b' for {noise} noise")
    return name  # type: ignore[return-value]


@operation
def stochastic_binary(
    input: Tensor,
    noise: str | Distribution = "logistic",
    low: float = 0.0,
    high: float = 1.0,
    method: LogisticMethod | None = None,
    gradient: Gradient = "straight_through",
    training: bool = True,
) -> Tensor:
    r"""A unit that is `high` where $X - Z \ge 0$, that is with probability $F(X)$, and `low` otherwise.

    $F$ is the distribution function of the noise $Z$. On a value with a variance, `method` computes $E\,F(X)$:

    * `exact`: to quadrature accuracy or better, for any noise;
    * `ap2a`, `ap2b`: as if $X - Z$ were normal or logistic, with its mean and variance (the paper's methods, for any
      noise);
    * `pea`, `mackay`: see `momentprop.paper`, for logistic noise only.

    The default is `exact`, except `ap2b` for logistic noise on a `Logistic` or `Fitted` value.

    A draw has the gradient of its expectation ("straight through"). With `gradient="score"` it has none and adds its
    probability to the active `ScoreFunction` instead.

    >>> import torch, momentprop
    >>> x = momentprop.Normal(torch.tensor([1.0]), 4.0)
    >>> momentprop.functional.stochastic_binary(x)
    Normal(loc=tensor([0.6477]),
           variance=tensor([0.2282]))
    >>> momentprop.functional.stochastic_binary(x, "laplace", low=-1.0).loc
    tensor([0.3260])
    """
    probability = chance(input, noise)
    unit = drawn(probability, gradient) if training else probability
    return between(unit, low, high)  # type: ignore[no-any-return]


def logistic_bernoulli(input: Any, method: LogisticMethod | None = None, training: bool = True) -> Any:
    r"""A unit that is one with probability $S(X) = 1/(1+e^{-X})$, and zero otherwise.

    >>> import torch, momentprop
    >>> momentprop.functional.logistic_bernoulli(momentprop.Normal(torch.tensor([1.0]), 4.0), "ap2b").loc
    tensor([0.6619])
    """
    return stochastic_binary(input, "logistic", method=method, training=training)


def probit_bernoulli(input: Any, training: bool = True) -> Any:
    r"""A unit that is one with probability $\Phi(X)$, and zero otherwise."""
    return stochastic_binary(input, "normal", training=training)


def chance(x: Tensor, noise: str | Distribution) -> Tensor:
    r"""The probability $F(x)$ that the noise is at most $x$."""
    own = standard(named(noise), x)
    return own.cdf((x - own.loc) / own.scale).to(x.dtype)


def drawn(probability: Tensor, gradient: str) -> Tensor:
    """Bernoulli draws with these probabilities."""
    unit = torch.bernoulli(probability.detach())
    # never the logarithm of zero: a draw of probability zero does not occur
    return _estimated(unit, probability, lambda: torch.where(unit > 0, probability, 1 - probability).log(), gradient)


def _estimated(unit: Tensor, probability: Tensor, log_probability: Callable[[], Tensor], gradient: str) -> Tensor:
    """A draw with the requested gradient."""
    if as_gradient(gradient) == "score":
        leave(log_probability())
        return unit
    return unit + (probability - probability.detach())


def between(unit: Any, low: float, high: float) -> Any:
    """Map a unit from [0, 1] to the interval between two values."""
    return unit if (low, high) == (0.0, 1.0) else low + (high - low) * unit


@operation
def binary_step(input: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    r"""A hard threshold: `high` where $X \ge 0$ and `low` otherwise.

    Its gradient on a tensor is zero. On a value with a variance the unit is uncertain, and its mean $\Phi(\mu/\sigma)$
    depends smoothly on the input.
    """
    side = torch.sign(torch.sign(input) + 0.5)  # its derivative is zero; a comparison would have none
    return between(0.5 * side + 0.5, low, high)  # type: ignore[no-any-return]


@operation
def noisy_activation(
    input: Tensor, function: Callable[[Any], Any], noise: str | Distribution = "normal", training: bool = True
) -> Tensor:
    r"""$f(X - Z)$ for an elementwise function $f$, such as the stochastic rectifier $\max(0, X - Z)$.

    On a value with a variance, means and variances add, and the rule of $f$ does the rest. The expectation on a tensor,
    and so AP1, is $E\,f(x - Z)$. Normal noise uses the rule of $f$ on `Normal`, logistic noise in rectifiers the rule
    on `Logistic`, and all other cases a quadrature over the noise's quantiles, for which $f$ can have one kink or jump,
    at zero.

    >>> import torch, momentprop
    >>> x = torch.tensor([0.0, 1.0])
    >>> momentprop.functional.noisy_activation(x, torch.relu, "logistic", training=False)
    tensor([0.6931, 1.3133])
    """
    if training:
        return function(input - draw_like(input, noise))  # type: ignore[no-any-return]
    return expected_activation(function, input, named(noise))


def expected_activation(function: Callable[[Any], Any], x: Tensor, noise: Distribution) -> Tensor:
    r"""$E\,f(x - Z)$, as `noisy_activation` computes it."""
    family = _family_of(function, noise)
    if family is not None:
        mean, variance = noise_moments(noise, x)
        with suspended():  # an enclosing propagation by means would turn this value into a mean
            result: Tensor = function(family.of(x - mean, variance.expand_as(x))).loc
        return result
    own = standard(noise, x.double())
    ends = [own.position(torch.as_tensor(kink).to(own.loc)).clamp(-32.0, 32.0) for kink in own.kinks]
    return expectation(
        function,
        x,
        lambda t: own.loc + own.scale * own.quantile(t),
        lambda z: own.position((z - own.loc) / own.scale),
        ends,
    )


def _family_of(function: Callable[[Any], Any], noise: Distribution) -> type[Independent] | None:
    """The type of value whose rule gives the expectation exactly, if there is one."""
    if isinstance(noise, NormalDistribution):
        return Normal
    plain = function.func if isinstance(function, functools.partial) else function
    rectifies = isinstance(plain, nn.ReLU | nn.LeakyReLU | nn.PReLU) or plain in (
        torch.relu, F.relu, F.leaky_relu, torch.abs,
    )  # fmt: skip
    return Logistic if rectifies and isinstance(noise, LogisticDistribution) else None


@operation
def gumbel_argmax(
    input: Tensor,
    dim: int = -1,
    method: PosteriorMethod | None = None,
    gradient: Gradient = "straight_through",
    training: bool = True,
) -> Tensor:
    r"""$\arg\max_k (X_k + \Gamma_k)$ with independent Gumbel noises $\Gamma_k$, as a one-hot vector.

    Its expectation given $x$ is $\mathrm{softmax}(x)$. On a value with a variance it has the moments $q$ and $q(1-q)$
    of the class indicators, with the class posterior $q$ by `method` (see `class_posterior`). A draw has the gradient
    described in `stochastic_binary`.

    >>> import torch, momentprop
    >>> x = momentprop.Normal(torch.tensor([2.0, 0.0, 0.0]), torch.tensor([9.0, 1.0, 1.0]))
    >>> momentprop.functional.gumbel_argmax(x)
    Normal(loc=tensor([0.6212, 0.1894, 0.1894]),
           variance=tensor([0.2353, 0.1535, 0.1535]))
    """
    log_probability = torch.log_softmax(input, dim)
    if not training:
        return log_probability.exp()
    winner = (input.detach() + draw_like(input, "gumbel")).argmax(dim, keepdim=True)
    unit = torch.zeros_like(log_probability).scatter(dim, winner, 1.0)
    return _estimated(unit, log_probability.exp(), lambda: log_probability.gather(dim, winner), gradient)
