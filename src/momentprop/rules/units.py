r"""Rules for the operations of `momentprop.functional`: injected noise and stochastic binary units."""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from momentprop import paper
from momentprop.dispatch import rule
from momentprop.functional import noise as injected
from momentprop.functional import units
from momentprop.functional.units import LogisticMethod
from momentprop.kernels.fuse import Kernel, Moments, fused
from momentprop.kernels.logistic import bernoulli_logistic
from momentprop.kernels.probit import bernoulli_probit
from momentprop.kernels.tails import cdf
from momentprop.values import Certain, Fitted, Logistic, Mean, Normal, Sample

_logistic_bernoulli = unwrap(units.logistic_bernoulli)  # the operations as they are on plain tensors
_probit_bernoulli = unwrap(units.probit_bernoulli)


def _bernoulli(probability: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    def kernel(mean: Tensor, variance: Tensor) -> Moments:
        p = probability(mean, variance)
        return Moments(p, p * (1 - p))

    return kernel


_LOGISTIC_METHODS: dict[str, Kernel] = {
    "exact": bernoulli_logistic,
    "ap2a": _bernoulli(paper.ap2a),
    "ap2b": _bernoulli(paper.ap2b),
    "pea": _bernoulli(paper.pea),
    "mackay": _bernoulli(paper.mackay),
}


@rule("logistic_bernoulli", on=Normal)
def logistic_bernoulli(input: Normal, method: LogisticMethod | None = None, training: bool = True) -> Normal:
    r"""Moments of the logistic Bernoulli unit: $\mu' = E\,S(X)$ by a mixture of probits, $\sigma'^2 = \mu'(1-\mu')$.

    Error: 1e-5; the paper's methods: AP2a 0.98, AP2b 0.91, MacKay 1.43, PEA 2.3 (relative, of $\sigma'$, far tails)
    Source: paper, "Sigmoid Belief Networks", AP2a, AP2b, PEA
    """
    name = method or ("ap2b" if isinstance(input, Logistic | Fitted) else "exact")
    if name not in _LOGISTIC_METHODS:
        raise ValueError(f"unknown method {name!r}; choose one of {', '.join(_LOGISTIC_METHODS)}")
    # AP2a and PEA do not tend to the logistic function at zero variance, and are not made to
    certain = None if name in ("ap2a", "pea") else torch.sigmoid
    return input.of(*fused(_LOGISTIC_METHODS[name], certain, input.loc, input.variance))


@rule("probit_bernoulli", on=Normal)
def probit_bernoulli(input: Normal, training: bool = True) -> Normal:
    r"""Moments of the probit unit: $\mu' = \Phi(\mu/\sqrt{1+\sigma^2})$, $\sigma'^2 = \mu'(1-\mu')$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "Probit" (printed as an approximation; for normal $X$ it is exact)
    """
    return input.of(*fused(bernoulli_probit, cdf, input.loc, input.variance))


@rule("logistic_bernoulli", on=Mean)
def logistic_bernoulli_mean(input: Mean, method: LogisticMethod | None = None, training: bool = True) -> Mean:
    r"""The mean of the logistic Bernoulli unit at the mean of its input, $S(\mu)$.

    Error: exact
    Source: paper, AP1
    """
    return input.of(_logistic_bernoulli(input.loc, training=False))


@rule("probit_bernoulli", on=Mean)
def probit_bernoulli_mean(input: Mean, training: bool = True) -> Mean:
    r"""The mean of the probit unit at the mean of its input, $\Phi(\mu)$.

    Error: exact
    Source: paper, AP1
    """
    return input.of(_probit_bernoulli(input.loc, training=False))


@rule("logistic_bernoulli", on=Sample)
def logistic_bernoulli_draw(input: Sample, method: LogisticMethod | None = None, training: bool = True) -> Sample:
    r"""A draw of the logistic Bernoulli unit.

    Error: exact
    Source: paper, "Sigmoid Belief Networks"
    """
    return input.of(_logistic_bernoulli(input.loc, training=True))


@rule("probit_bernoulli", on=Sample)
def probit_bernoulli_draw(input: Sample, training: bool = True) -> Sample:
    r"""A draw of the probit unit.

    Error: exact
    Source: paper, "Probit"
    """
    return input.of(_probit_bernoulli(input.loc, training=True))


@rule("add_noise", on=Normal)
def add_noise(input: Normal, noise: Distribution, training: bool = True) -> Normal:
    r"""Moments of $X + Z$ for independent noise $Z$: means and variances add.

    Error: exact
    Source: paper, "General Latent Variable Models"
    """
    mean, variance = injected.noise_moments(noise, input)
    return input.of(input.loc + mean, input.variance + variance)


@rule("multiply_noise", on=Normal)
def multiply_noise(input: Normal, noise: Distribution, training: bool = True) -> Normal:
    r"""Moments of $X Z$ for independent noise $Z$, which is a product.

    Error: exact
    Source: paper, table of approximations, "Product"
    """
    mean, variance = injected.noise_moments(noise, input)
    return input.of(input.loc * mean, input.variance * (mean * mean + variance) + input.loc * input.loc * variance)


def _register_noise_on_certain(op: str, function: Callable[..., Tensor]) -> None:
    for on, training in ((Mean, False), (Sample, True)):

        def noisy(input: Certain, noise: Distribution, training: bool = True, *, _draw: bool = training) -> Any:
            return input.of(function(input.loc, noise, training=_draw))

        noisy.__name__ = op
        what = "drawn" if training else "at its mean"
        noisy.__doc__ = f"The value with the noise {what}.\n\nError: exact\nSource: paper, AP1 and sampling"
        rule(op, on=on)(noisy)


_register_noise_on_certain("add_noise", unwrap(injected.add_noise))
_register_noise_on_certain("multiply_noise", unwrap(injected.multiply_noise))
