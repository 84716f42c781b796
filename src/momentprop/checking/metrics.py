r"""Figures of merit: how far the moments of a method are from those of many draws, and what the draws can resolve.

A star marks an estimate from $n$ draws. The *Monte Carlo floor* of a figure is its value for the exact moments, which
is not zero because $\mu^*$ and $\sigma^*$ have errors of their own: $\mu^* - \mu$ is about normal with deviation
$\sigma/\sqrt n$, and $\log\sigma^*$ has variance $(\kappa - 1)/4n$, where $\kappa$ is the kurtosis of the unit (3 if it
is normal).
"""

import math

import torch
from torch import Tensor

from momentprop.values import Estimate

ROUNDING = 8
"""A unit varies if its deviation exceeds this many times the precision of its type, at the scale of its module."""


def varies(stddev: Tensor, loc: Tensor, dtype: torch.dtype) -> Tensor:
    """Tells which units have a deviation larger than rounding."""
    scale = loc.square().mean().sqrt()
    return stddev > ROUNDING * torch.finfo(dtype).eps * scale


def eps_mean(loc: Tensor, truth: Estimate) -> float:
    r"""The average of $|\mu - \mu^*|$ over the average of $\sigma^*$.

    Source: paper, "Approximation Accuracy"
    """
    return float((loc - truth.loc).abs().mean() / truth.stddev.mean())


def eps_mean_floor(samples: int) -> float:
    r"""$E|\mu^* - \mu|$ in units of $\sigma$, which is $\sqrt{2/\pi n}$: 0.025 for 1000 draws."""
    return math.sqrt(2 / (math.pi * samples))


def eps_std(stddev: Tensor, truth: Estimate) -> float:
    r"""The geometric mean of $\sigma/\sigma^*$: 1 is exact, 0.9 underestimates by a tenth.

    Source: paper, "Approximation Accuracy"
    """
    return float(_log_ratio(stddev, truth).mean().exp())


def eps_std_floor(truth: Estimate) -> float:
    r"""The factor by which exact deviations may be off: $e^r$ with the floor $r$ of `rms_log_std`.

    It is reached if the errors of all $\sigma^*$ are equal, as for units that vary together; independent ones average
    out.
    """
    return math.exp(rms_log_std_floor(truth))


def rms_log_std(stddev: Tensor, truth: Estimate) -> float:
    r"""The root mean square of $\log(\sigma/\sigma^*)$: about the relative error of one deviation."""
    return float(_log_ratio(stddev, truth).square().mean().sqrt())


def rms_log_std_floor(truth: Estimate) -> float:
    r"""The root mean square error of $\log\sigma^*$, by $\mathrm{Var}\log\sigma^* = \mathrm{Var}[v^*]/4v^{*2}$."""
    return float((truth.variance_error / (2 * truth.variance)).square().mean().sqrt())


def correlation(stddev: Tensor, truth: Estimate) -> float:
    r"""The correlation of $\sigma$ with $\sigma^*$ over the units: whether the method knows which are uncertain."""
    return float(torch.corrcoef(torch.stack([stddev, truth.stddev]))[0, 1]) if len(stddev) > 1 else math.nan


def correlation_ceiling(truth: Estimate) -> float:
    r"""The correlation of the exact $\sigma$ with $\sigma^*$: $\sqrt{1 - \overline{e^2}/\mathrm{Var}\,\sigma^*}$.

    Here $e = \mathrm{Var}[v^*]^{1/2}/2\sigma^*$ is the error of $\sigma^*$. Deviations that are nearly equal cannot
    correlate, however good the method is.
    """
    noise = (truth.variance_error.square() / (4 * truth.variance)).mean()
    spread = truth.stddev.var(correction=0)
    return float((1 - noise / spread).clamp(min=0).sqrt())


def coverage_floor(level: float, samples: int) -> float:
    r"""The error $\sqrt{p(1-p)/n}$ of a coverage, if all units vary together; independent ones average out."""
    return math.sqrt(level * (1 - level) / samples)


def correlation_error(found: Tensor | None, truth: Tensor, varies: Tensor) -> float:
    r"""The average of $|\rho_{ij} - \rho^*_{ij}|$ over the pairs of units of an item that vary; None is independence.

    All have the shape (items, units, units), or (items, units).
    """
    error = (truth if found is None else found - truth).abs()
    return float(error[_pairs(varies)].mean())


def correlation_error_floor(truth: Tensor, varies: Tensor, samples: int) -> float:
    r"""The error of the exact correlations: $\rho^* - \rho$ has a deviation of about $(1 - \rho^2)/\sqrt n$."""
    return float((1 - truth[_pairs(varies)].square()).mean()) * eps_mean_floor(samples)


def _pairs(varies: Tensor) -> Tensor:
    """Which entries of the correlation matrices are of two different units that vary."""
    both = varies.unsqueeze(-1) & varies.unsqueeze(-2)
    return both & ~torch.eye(varies.shape[-1], dtype=torch.bool, device=varies.device)


def divergence(truth: Tensor, log_q: Tensor) -> float:
    r"""$\mathrm{KL}(p^*\,\|\,q) = \sum_y p^*(y)\log(p^*(y)/q(y))$ in nats, averaged over inputs; classes come last.

    Source: paper, "Approximation Accuracy"
    """
    return float((torch.xlogy(truth, truth) - torch.where(truth > 0, truth * log_q, 0.0)).sum(-1).mean())


def divergence_floor(truth: Tensor, variance: Tensor, samples: int) -> float:
    r"""The divergence $E\,\mathrm{KL}(p^*\,\|\,p) \approx \sum_y \mathrm{Var}[p_y]/2np_y$ of the exact posterior $p$.

    $\mathrm{Var}[p_y]$ is that of the softmax over draws. The divergence of any $q$ exceeds its true one by just this
    in expectation: $E\,\mathrm{KL}(p^*\,\|\,q) = \mathrm{KL}(p\,\|\,q) + E\,\mathrm{KL}(p^*\,\|\,p)$, because
    $E\,p^* = p$.
    """
    terms = torch.where(truth > 0, variance / truth.clamp(min=torch.finfo(truth.dtype).tiny), 0.0)
    return float(terms.sum(-1).mean() / (2 * samples))


def worth(squared_error: float, squared_floor: float, samples: int) -> float:
    r"""The number of draws with the same error as the method: $n\,f^2/(e^2 - f^2)$, and at most $n$.

    Both the error of $N$ draws and the floor fall as $1/\sqrt N$, and the floor is part of the measured error $e$:
    $e^2 = e_\text{method}^2 + f^2$. For the root mean square of log deviations and, with divergences in place of
    squares, for KL that holds exactly (in expectation); for `eps_mean` if the method's errors are normally distributed
    over units, and if they are all equal the error of the method comes out up to 15 % too small. A method as good as
    the draws is worth "more than $n$".
    """
    excess = squared_error - squared_floor
    return min(samples * squared_floor / excess, samples) if excess > 0 else float(samples)


def _log_ratio(stddev: Tensor, truth: Estimate) -> Tensor:
    return stddev.log() - truth.stddev.log()
