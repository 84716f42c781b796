r"""Rules of the stochastic units of `momentprop.functional`: binary units, categorical units, noisy activations."""

from collections.abc import Callable
from inspect import signature, unwrap
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from momentprop import paper
from momentprop.dispatch import Call, rule
from momentprop.dispatch.registry import composite, noise
from momentprop.distributions import LOGISTIC_VARIANCE
from momentprop.functional import noise as injected
from momentprop.functional import stochastic_units as units
from momentprop.functional.noise import noise_moments
from momentprop.functional.posterior import PosteriorMethod
from momentprop.functional.stochastic_units import Gradient, LogisticMethod, as_method, between
from momentprop.kernels.bernoulli import bernoulli_laplace, bernoulli_quadrature, bernoulli_uniform
from momentprop.kernels.fuse import fused
from momentprop.kernels.logistic import bernoulli_logistic
from momentprop.kernels.moments import Kernel, Moments
from momentprop.kernels.probit import bernoulli_probit
from momentprop.noise.named import StandardNoise, named, standard
from momentprop.rules.reductions.softmax import log_posterior
from momentprop.values import Certain, Fitted, Logistic, Mean, Normal, Sample
from momentprop.values.base import Value


def _bernoulli(probability: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    def kernel(mean: Tensor, variance: Tensor) -> Moments:
        p = probability(mean, variance)
        return Moments(p, p * (1 - p))

    return kernel


_EXACT: dict[str, Kernel] = {
    "logistic": bernoulli_logistic,
    "normal": bernoulli_probit,
    "uniform": bernoulli_uniform,
    "laplace": bernoulli_laplace,
}
_OF_A_SUM: dict[str, Kernel] = {"ap2a": _bernoulli(paper.ap2a), "ap2b": _bernoulli(paper.ap2b)}
_OF_LOGISTIC: dict[str, Kernel] = {"pea": _bernoulli(paper.pea), "mackay": _bernoulli(paper.mackay)}


@noise("stochastic_binary", on=Normal)
def stochastic_binary(
    input: Normal,
    noise: str | Distribution = "logistic",
    low: float = 0.0,
    high: float = 1.0,
    method: LogisticMethod | None = None,
    gradient: Gradient = "straight_through",
    training: bool = True,
) -> Normal:
    r"""Moments of a binary unit of noise $Z$ in $\{0, 1\}$: $\mu' = E\,F(X)$ and $\sigma'^2 = \mu'(1-\mu')$.

    $F$ is the distribution function of the noise. $E\,F(X)$ has a closed form for normal, Laplace and uniform noise, is
    a mixture of probits for logistic noise, and a quadrature over $X$ otherwise. The methods `ap2a` and `ap2b` assume
    that $X - Z$ is normal and logistic, respectively.

    Error: 1e-5 (normal noise: exact, 5e-6 in float32; noise without a name: 1e-4 in float32); of the paper's methods:
    AP2a 0.98, AP2b 0.91, MacKay 1.43, PEA 2.3 (relative, of $\sigma'$, far tails, logistic noise)
    Source: paper, "General Latent Variable Models", AP2a, AP2b, PEA, "Probit" (printed as an approximation, but exact)
    """
    found = named(noise)
    own = standard(found, input)
    kernel, certain = _kernel(own, as_method(method or _default(input, own.name), own.name))
    shift, unit = own.loc, own.scale
    if method in _OF_A_SUM:  # scaled to the variance of logistic noise
        shift, variance = noise_moments(found, input)
        unit = (variance / LOGISTIC_VARIANCE).sqrt()
    p, spread = fused(kernel, certain, (input.loc - shift) / unit, input.variance / (unit * unit), noisy=True)
    return input.of(between(p, low, high), spread if (low, high) == (0.0, 1.0) else (high - low) ** 2 * spread)


def _default(input: Normal, noise: str) -> LogisticMethod:
    return "ap2b" if noise == "logistic" and isinstance(input, Logistic | Fitted) else "exact"


def _kernel(noise: StandardNoise, method: str) -> tuple[Kernel, Callable[[Tensor], Tensor] | None]:
    """Return a method's kernel and its limit at zero variance, if that is the unit's probability."""
    if method == "exact":
        return _EXACT.get(noise.name) or bernoulli_quadrature(noise.cdf, noise.kinks), noise.cdf
    # at zero variance AP2a and PEA do not tend to the probability, and we leave them so
    certain = torch.sigmoid if method in ("ap2b", "mackay") and noise.name == "logistic" else None
    return {**_OF_A_SUM, **_OF_LOGISTIC}[method], certain


@noise("noisy_activation", on=Normal)
def noisy_activation(
    input: Normal, function: Callable[[Any], Any], noise: str | Distribution = "normal", training: bool = True
) -> Any:
    r"""Moments of $f(X - Z)$, by the rule of $f$ for a normal $X - Z$.

    Error: as the rule of $f$ for normal noise; for other noise, also the error of taking $X - Z$ as normal
    Source: paper, "General Latent Variable Models"
    """
    mean, variance = noise_moments(noise, input)
    return function(input.of(input.loc - mean, input.variance + variance))


@composite("binary_step", on=Value)
def binary_step(input: Any, low: float = 0.0, high: float = 1.0) -> Any:
    r"""Moments of a hard threshold, by the rule of `heaviside` on the value's type.

    Error: as `heaviside`
    Source: paper, "Heaviside Step Function"
    """
    unit = torch.heaviside(input, torch.ones((), dtype=input.dtype, device=input.device))
    return between(unit, low, high)


def _classes(call: Call) -> list[int]:
    """Return the dimension of the classes, which share one draw."""
    return call.operation.dims(call) or []


@noise("gumbel_argmax", on=Normal, along="dim", shared=_classes)
def gumbel_argmax(
    input: Normal,
    dim: int = -1,
    method: PosteriorMethod | None = None,
    gradient: Gradient = "straight_through",
    training: bool = True,
) -> Normal:
    r"""Moments of the one-hot vector of $\arg\max_k (X_k + \Gamma_k)$: $\mu' = q$ and $\sigma'^2 = q(1 - q)$.

    $q$ is the class posterior. The rule drops the covariances $-q_k q_j$ of the classes.

    Error: as `log_softmax`
    Source: paper, "Connection to argmax"
    """
    log_q = log_posterior(input, dim, method).movedim(-1, dim)
    q = log_q.exp()
    return input.of(q, -q * torch.expm1(log_q))


def _register_on_certain(op: str, what: str) -> None:
    """Register a unit on `Mean` and `Sample`: its own function on a tensor, outside training or in it."""
    function = unwrap(getattr(units, op, None) or getattr(injected, op))
    position = list(signature(function).parameters).index("training")

    def register(on: type[Certain], training: bool, summary: str) -> None:
        def unit(input: Certain, *args: Any, **kwargs: Any) -> Any:
            kwargs["training"] = training  # noise acts on a value in both modes
            return input.of(function(input.loc, *args[: position - 1], **kwargs))

        unit.__name__ = op
        unit.__doc__ = f"{summary}.\n\nError: exact up to quadrature\nSource: paper, AP1 and sampling"
        rule(op, on=on)(unit)

    register(Mean, False, f"The expectation of {what} at the mean of its input")
    register(Sample, True, f"A draw of {what}")


_register_on_certain("stochastic_binary", "a binary unit")
_register_on_certain("noisy_activation", "a noisy activation")
_register_on_certain("gumbel_argmax", "the largest of noisy inputs")
_register_on_certain("add_noise", "the noisy input")
_register_on_certain("multiply_noise", "the noisy input")


@noise("add_noise", on=Normal)
def add_noise(input: Normal, noise: str | Distribution, training: bool = True) -> Normal:
    r"""Moments of $X + Z$ for independent noise $Z$: means and variances add.

    Error: exact
    Source: paper, "General Latent Variable Models"
    """
    mean, variance = noise_moments(noise, input)
    return input.of(input.loc + mean, input.variance + variance)


@noise("multiply_noise", on=Normal)
def multiply_noise(input: Normal, noise: str | Distribution, training: bool = True) -> Normal:
    r"""Moments of $X Z$ for independent noise $Z$: a product of independent factors.

    Error: exact
    Source: paper, table of approximations, "Product"
    """
    mean, variance = noise_moments(noise, input)
    return input.of(input.loc * mean, input.variance * (mean * mean + variance) + input.loc * input.loc * variance)
