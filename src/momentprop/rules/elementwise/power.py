r"""Powers, roots, logarithms and sinusoids.

Integer powers, sine and cosine are exact. Roots, logarithms, reciprocals and real powers *change the model*: they treat
the value as lognormal with the same mean and variance (see `momentprop.lognormal_model`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Transform
from momentprop.dispatch import where as place
from momentprop.dispatch.registry import elementwise
from momentprop.kernels.exponential import lognormal, lognormal_of_base
from momentprop.kernels.moments import Kernel
from momentprop.kernels.power import cosine, integer_power, lognormal_log, lognormal_power, sine
from momentprop.lognormal_model import warn_if_visible
from momentprop.values import Normal
from momentprop.values.base import Value, may_look_at


@elementwise("square", on=Normal, once=True)
def square(input: Normal) -> Transform:
    r"""Moments of $X^2$: $\mu' = \mu^2 + \sigma^2$ and $\sigma'^2 = 4\mu^2\sigma^2 + 2\sigma^4$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: moments of the normal distribution
    """
    return Transform(partial(integer_power, n=2), torch.square)


@elementwise("pow", on=Normal)
def pow(input: Any, exponent: Any) -> Transform:
    r"""Moments of $X^n$ and, for a certain positive base, of $c^X$, both exact; or of a real power of lognormal $X$.

    For integers $n \ge 0$, the variance is $\sum_k \frac{\sigma^{2k}}{k!} (E f^{(k)})^2$; $c^X$ is $e^{X \log c}$.
    Other exponents treat $X$ as lognormal, which changes the model: with $L = \log(1 + \sigma^2/\mu^2)$,
    $\mu' = \mu^p e^{p(p-1)L/2}$ and $\sigma'^2 = \mu'^2(e^{p^2L} - 1)$. Warns of a coefficient of variation above 0.2.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: Hermite expansion; moments of the lognormal distribution
    """
    if isinstance(exponent, Value):
        return _power_of_certain(input, exponent)
    if isinstance(exponent, Tensor):
        raise TypeError(
            f"the exponent of a random value must be a number, but is a tensor of shape {tuple(exponent.shape)}: write "
            "`x ** exponent.item()`, or use method='sample' for several exponents"
        )
    if isinstance(exponent, complex):
        raise TypeError(f"the exponent of a random value must be a real number, but 'pow' at {place()} has {exponent}")
    plain = partial(torch.pow, exponent=exponent)
    if exponent == int(exponent) and exponent >= 0:
        return Transform(partial(integer_power, n=int(exponent)), plain)
    kernel = partial(lognormal_power, exponent=exponent)
    return _as_lognormal("pow", input, kernel, plain, positive=exponent != int(exponent))


def _power_of_certain(base: Any, exponent: Any) -> Transform:
    if isinstance(base, Value):
        raise TypeError(
            "`pow` has no rule for a random base with a random exponent: write `base.loc ** exponent`, or use "
            "method='sample'"
        )
    if not isinstance(base, Tensor):
        if base <= 0:
            raise ValueError(f"a random exponent needs a positive base, but the base is {base}")
        power = partial(torch.pow, base)
        return Transform(partial(lognormal, power=power, rate=math.log(base)), power)
    if may_look_at(base, None) and bool((base <= 0).any()):
        raise ValueError("a random exponent needs a positive base, but some elements of the base are zero or negative")
    power = partial(torch.pow, base)
    return Transform(lognormal_of_base, power, (base.to(exponent.dtype),), of_more=lambda x, base: torch.pow(base, x))


def _as_lognormal(
    op: str,
    input: Normal,
    kernel: Kernel,
    plain: Callable[[Tensor], Tensor],
    *,
    positive: bool = True,
    shift: float = 0.0,
) -> Transform:
    warn_if_visible(op, input.loc + shift, input.variance, positive=positive)
    return Transform(kernel, plain)


@elementwise("sqrt", on=Normal)
def sqrt(input: Normal) -> Transform:
    r"""Moments of $\sqrt X$ for lognormal $X$: $\mu' = \sqrt\mu\,e^{-L/8}$ with $L = \log(1 + \sigma^2/\mu^2)$.

    Changes the model from normal to lognormal; warns of a coefficient of variation above 0.2 and of a mean that is not
    positive.

    Error: exact for lognormal $X$; 5e-6 in float32, 1e-10 in float64
    Source: moments of the lognormal distribution
    """
    return _as_lognormal("sqrt", input, partial(lognormal_power, exponent=0.5), torch.sqrt)


@elementwise("rsqrt", on=Normal)
def rsqrt(input: Normal) -> Transform:
    r"""Moments of $1/\sqrt X$ for lognormal $X$: $\mu' = \mu^{-1/2} e^{3L/8}$ with $L = \log(1 + \sigma^2/\mu^2)$.

    Changes the model from normal to lognormal; warns of a coefficient of variation above 0.2 and of a mean that is not
    positive.

    Error: exact for lognormal $X$; 5e-6 in float32, 1e-10 in float64
    Source: moments of the lognormal distribution
    """
    return _as_lognormal("rsqrt", input, partial(lognormal_power, exponent=-0.5), torch.rsqrt)


@elementwise("reciprocal", on=Normal)
def reciprocal(input: Normal) -> Transform:
    r"""Moments of $1/X$ for lognormal $X$ (or $-X$): $\mu' = e^L/\mu$ with $L = \log(1 + \sigma^2/\mu^2)$.

    Changes the model from normal to lognormal; warns of a coefficient of variation above 0.2.

    Error: exact for lognormal $X$; 5e-6 in float32, 1e-10 in float64
    Source: moments of the lognormal distribution
    """
    kernel = partial(lognormal_power, exponent=-1.0)
    return _as_lognormal("reciprocal", input, kernel, torch.reciprocal, positive=False)


@elementwise("log", on=Normal)
def log(input: Normal) -> Transform:
    r"""Moments of $\log X$ for lognormal $X$: $\mu' = \log\mu - L/2$, $\sigma'^2 = L = \log(1 + \sigma^2/\mu^2)$.

    Changes the model from normal to lognormal; warns of a coefficient of variation above 0.2 and of a mean that is not
    positive.

    Error: exact for lognormal $X$; 5e-6 in float32, 1e-10 in float64
    Source: moments of the lognormal distribution
    """
    return _as_lognormal("log", input, lognormal_log, torch.log)


@elementwise("log2", on=Normal)
def log2(input: Normal) -> Transform:
    r"""Moments of $\log_2 X$ for lognormal $X$: as for $\log X$, in other units.

    Changes the model from normal to lognormal; warns of a coefficient of variation above 0.2 and of a mean that is not
    positive.

    Error: exact for lognormal $X$; 5e-6 in float32, 1e-10 in float64
    Source: moments of the lognormal distribution
    """
    return _as_lognormal("log2", input, partial(lognormal_log, logarithm=torch.log2, unit=1 / math.log(2)), torch.log2)


@elementwise("log10", on=Normal)
def log10(input: Normal) -> Transform:
    r"""Moments of $\log_{10} X$ for lognormal $X$: as for $\log X$, in other units.

    Changes the model from normal to lognormal; warns of a coefficient of variation above 0.2 and of a mean that is not
    positive.

    Error: exact for lognormal $X$; 5e-6 in float32, 1e-10 in float64
    Source: moments of the lognormal distribution
    """
    kernel = partial(lognormal_log, logarithm=torch.log10, unit=1 / math.log(10))
    return _as_lognormal("log10", input, kernel, torch.log10)


@elementwise("log1p", on=Normal)
def log1p(input: Normal) -> Transform:
    r"""Moments of $\log(1 + X)$ for lognormal $1 + X$, as for $\log X$.

    Changes the model from normal to lognormal; warns of a coefficient of variation of $1 + X$ above 0.2 and of a mean
    of at most $-1$.

    Error: exact for lognormal $1 + X$; 5e-6 in float32, 1e-10 in float64
    Source: moments of the lognormal distribution
    """
    kernel = partial(lognormal_log, logarithm=torch.log1p, shift=1.0)
    return _as_lognormal("log1p", input, kernel, torch.log1p, shift=1.0)


@elementwise("sin", on=Normal)
def sin(input: Normal) -> Transform:
    r"""Moments of $\sin X$, with $q = e^{-\sigma^2}$.

    $\mu' = \sqrt q \sin\mu$ and $\sigma'^2 = (1-q)\left(\frac{1-q}{2} + q\cos^2\mu\right)$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: characteristic function of the normal distribution
    """
    return Transform(sine, torch.sin)


@elementwise("cos", on=Normal)
def cos(input: Normal) -> Transform:
    r"""Moments of $\cos X$, with $q = e^{-\sigma^2}$.

    $\mu' = \sqrt q \cos\mu$ and $\sigma'^2 = (1-q)\left(\frac{1-q}{2} + q\sin^2\mu\right)$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: characteristic function of the normal distribution
    """
    return Transform(cosine, torch.cos)
