r"""Moments of the softmax of independent normal variables along the last dimension.

By the race of `kernels.race`, class $y$ wins with probability
$$E\,p_y = \int A_{1,y} \prod_{k \ne y} A_{0,k}\,dt, \qquad E\,p_y^2 = \int A_{2,y} \prod_{k \ne y} A_{0,k}\,dt.$$
The integrands are analytic and vanish at both ends, so the midpoint rule converges exponentially; all classes share its
nodes, and the probabilities sum to one. We keep them as logarithms, so that small ones and their derivatives are
accurate.
"""

import torch
from torch import Tensor

from momentprop.codegen.formula import recording
from momentprop.distributions import LOGISTIC_VARIANCE
from momentprop.kernels.logistic import logistic_expectations
from momentprop.kernels.moments import Moments
from momentprop.kernels.race import course, finish

_MASKED = -1e30  # the log density of a runner that does not run


def race(mean: Tensor, variance: Tensor) -> Moments:
    r"""The class posterior $q_y = E\,p_y$: its logarithm, and the variance $q(1-q)$ of the class indicator."""
    mean, variance, absent = present(mean, variance)
    times, log_weights = course(mean, variance, nodes=16, depth=15.0, rest=3e-5)
    log_below, log_density = _watch(mean, variance, times, absent)
    log_all = log_below.sum(-1, keepdim=True) + log_weights.unsqueeze(-1)
    return _posterior(torch.logsumexp(log_density - log_below + log_all, -2), mean, variance, absent)


def softmax(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $p_y = \mathrm{softmax}(X)_y$: $E\,p_y$ and $\mathrm{Var}\,p_y = E\,p_y^2 - (E\,p_y)^2$.

    The most probable class has the variance of its complement $\sum_{k \ne y} p_k$, which does not cancel if the class
    is nearly certain. Below variances of 0.02 the difference of second moments is blended into its first order,
    $q_y^2(\sigma_y^2(1-q_y)^2 + \sum_{k\ne y} q_k^2\sigma_k^2)$.
    """
    mean, variance, absent = present(mean, variance)
    times, log_weights = course(mean, variance, nodes=24, depth=20.0, rest=1e-7)
    log_below, log_density = _watch(mean, variance, times, absent)
    _, log_second = _watch(mean, variance, times, absent, order=1)
    log_all = log_below.sum(-1, keepdim=True) + log_weights.unsqueeze(-1)
    weighed = torch.logsumexp(log_density - log_below + log_all, -2)
    total = torch.logsumexp(weighed, -1, keepdim=True)
    q = torch.exp(weighed - total)
    second = torch.exp(torch.logsumexp(log_second - log_below + log_all, -2) - total)

    top = one_hot(q)
    rest = torch.where(top, 0.0, q)
    complement = torch.where(top, rest.sum(-1, keepdim=True), 1 - q)
    hazards = torch.where(top.unsqueeze(-2), 0.0, torch.exp(log_density - log_below))
    pairs = hazards.sum(-1) ** 2 - (hazards * hazards).sum(-1)
    joint = (pairs * torch.exp(log_all.squeeze(-1) - total)).sum(-1, keepdim=True)
    rest_second = joint + torch.where(top, 0.0, second).sum(-1, keepdim=True)
    exact = torch.where(top, rest_second - complement * complement, second - q * q)

    parts = q * q * variance
    others = parts.sum(-1, keepdim=True) - parts
    first_order = q * q * (variance * complement * complement + others)
    blend = step(variance.amax(-1, keepdim=True) / 0.02)
    # rounding or quadrature error can push the difference out of the range of a variance on [0, 1]
    exact = torch.minimum(exact.clamp(min=0.0), q * complement)
    q = _exact_where_certain(q, torch.softmax(torch.where(absent, -torch.inf, mean), -1), variance)
    return Moments(q, blend * exact + (1 - blend) * first_order)


def fast(mean: Tensor, variance: Tensor) -> Moments:
    r"""The class posterior in $O(n)$: its logarithm, and the variance $q(1-q)$ of the class indicator.

    $q_y = E\,S(X_y - L_y)$ with $L_y = \log\sum_{k\ne y} e^{X_k}$ treated as normal, with moments matched at an inverse
    temperature $b = (1 + \bar v/c)^{-1/2}$ (Fenton and Wilkinson). Here $\bar v$ is the root mean square of the
    variances under a rough posterior and $c = 1 + 0.68\,H$ with its entropy $H$. Exact for two classes and for zero
    variances.
    """
    mean, variance, absent = present(mean, variance)
    return _posterior(log_logistic_mean(*against_rivals(mean, variance, absent)), mean, variance, absent)


def against_rivals(mean: Tensor, variance: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of $X_y - L_y$, as `fast` computes them."""
    if mean.shape[-1] == 1:
        return torch.full_like(mean, 1e3), torch.zeros_like(mean)  # there are no rivals
    relative = mean - mean.amax(-1, keepdim=True)  # changes only the derivative, which `present` leaves out
    rough = torch.log_softmax(relative * torch.rsqrt(1 + variance / LOGISTIC_VARIANCE), -1)
    p = rough.exp()
    entropy = -(p * rough).sum(-1, keepdim=True)
    square = (p * variance * variance).sum(-1, keepdim=True)
    typical = torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)
    b = torch.rsqrt(1 + typical / (1 + 0.68 * entropy))
    v = b * b * variance
    height = torch.where(absent, _MASKED, b * mean + 0.5 * v)
    peak, others = _without_own(height, torch.ones_like(height))
    level = peak + others.log()
    # the relative variance of the rivals' sum, e^x times a number of at most one for each rival
    top, relative_variance = _without_own(2 * height + v, -torch.expm1(-v))
    x = top - 2 * level
    scale = x.clamp(min=0.0)
    spread = scale + torch.log1p(torch.expm1(-scale) + torch.exp(x - scale) * relative_variance)
    gap = mean - (level - 0.5 * spread) / b
    # the rivals' sum is at least the best rival, which moments miss if another one is far behind but far wider
    return torch.minimum(gap, mean - _best_rival(mean)), variance + spread / (b * b)


def _best_rival(mean: Tensor) -> Tensor:
    top = one_hot(mean)
    second = torch.where(top, 4 * _MASKED, mean).amax(-1, keepdim=True)
    return torch.where(top, second, mean.amax(-1, keepdim=True))


def _without_own(heights: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    r"""For each class $y$: $h = \max_{k\ne y} h_k$, and $\sum_{k\ne y} f_k e^{h_k - h}$ without overflow."""
    top = one_hot(heights)
    rest = torch.where(top, 4 * _MASKED, heights)
    first, second = (part.amax(-1, keepdim=True) for part in (heights, rest))
    behind = torch.where(top, 0.0, factors * torch.exp(rest - first))
    from_first = (behind.sum(-1, keepdim=True) - behind) + torch.where(top, factors, 0.0).sum(-1, keepdim=True)
    from_second = torch.where(top, 0.0, factors * torch.exp(rest - second)).sum(-1, keepdim=True)
    return torch.where(top, second, first), torch.where(top, from_second, from_first)


_FAR_BEHIND = -1e18


def step(x: Tensor) -> Tensor:
    """A smooth step from 0 at 0 to 1 at 1, constant beyond."""
    x = x.clamp(0.0, 1.0)
    return x * x * (3 - 2 * x)


def present(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Means relative to the largest, variances, and which classes a mean of $-\infty$ excludes.

    Masks are often the lowest finite number. Such a mean is far behind at any noise, and doubling it must not overflow.
    """
    absent = mean == -torch.inf
    mean, variance = mean - mean.amax(-1, keepdim=True).detach(), torch.where(absent, 0.0, variance)
    mean = mean.clamp(min=_FAR_BEHIND)
    behind = -1e3 - 50 * variance.detach().amax(-1, keepdim=True).sqrt()  # before the race begins
    return torch.where(absent, behind, mean), variance, absent


def _watch(mean: Tensor, variance: Tensor, times: Tensor, absent: Tensor, order: int = 0) -> tuple[Tensor, Tensor]:
    gap = mean.unsqueeze(-2) - times.unsqueeze(-1)  # shape: (..., nodes, classes)
    first, second = finish(gap, variance.unsqueeze(-2).expand_as(gap), order)
    absent = absent.unsqueeze(-2)
    return torch.where(absent, 0.0 if order == 0 else _MASKED, first), torch.where(absent, _MASKED, second)


def _posterior(scores: Tensor, mean: Tensor, variance: Tensor, absent: Tensor) -> Moments:
    log_q = torch.log_softmax(scores, -1)
    log_q = _exact_where_certain(log_q, torch.log_softmax(torch.where(absent, -torch.inf, mean), -1), variance)
    return Moments(torch.where(absent, -torch.inf, log_q), -log_q.exp() * torch.expm1(log_q))


def _exact_where_certain(found: Tensor, plain: Tensor, variance: Tensor) -> Tensor:
    """The plain result where no class has a variance, with the computed result's derivatives."""
    certain = (variance == 0).all(-1, keepdim=True)
    return torch.where(certain, plain.detach() + (found - found.detach()), found)


def one_hot(x: Tensor) -> Tensor:
    """The mask of the first of the largest entries."""
    places = torch.arange(x.shape[-1], device=x.device)
    if not recording():
        return places == x.argmax(-1, keepdim=True)
    largest = torch.where(x == x.amax(-1, keepdim=True), places, torch.inf)
    return places == largest.amin(-1, keepdim=True)


def without_own(terms: Tensor) -> Tensor:
    """For each non-negative term, the sum of all others, without cancellation for the largest term."""
    top = one_hot(terms)
    rest = torch.where(top, 0.0, terms)
    total = rest.sum(-1, keepdim=True)
    return torch.where(top, total, total - rest + torch.where(top, terms, 0.0).sum(-1, keepdim=True))


def log_logistic_mean(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$\log E\,S(X)$, even where $E\,S(X)$ underflows, by the tilt of `kernels.logistic`."""
    positive = mean > 0
    left = torch.where(positive, -mean, mean)
    (tilted,), _ = logistic_expectations(torch.maximum(left, -variance - left), variance, 0)
    log_tail = tilted.clamp(min=torch.finfo(mean.dtype).tiny).log() + (left + 0.5 * variance).clamp(max=0.0)
    upper = torch.log1p(-torch.where(positive, log_tail, -1.0).exp())
    return torch.where(positive, upper, log_tail)
