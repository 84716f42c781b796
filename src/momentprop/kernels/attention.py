r"""Moments of $O_c = \sum_j p_j V_{jc}$, an average of values $V_j$ with weights $p = \mathrm{softmax}(X)$.

The scores $X_j = g\,Q\cdot K_j$ have two kinds of noise. A key's noise is *private* to its score, with variance
$g^2 \sum_d (\mu_{Q_d}^2 + \sigma_{Q_d}^2)\,\sigma_{K_{jd}}^2$. The query's noise is *shared* by all scores. Adding a
number to all scores leaves the softmax unchanged, so only the deviation of the key from the average key
$\bar k = \sum_j p_j\mu_{K_j}$ matters: $u_j = g^2 \sum_d \sigma_{Q_d}^2 (\mu_{K_{jd}} - \bar k_d)^2$.

To first order the weights deviate by $\delta p_j = p_j(\delta X_j - \sum_k p_k\,\delta X_k)$, so that with
$c_j = V_j - E\,O$ the private noise gives the variance $\sum_j p_j^2 \sigma_j^2 c_j^2$ and the shared noise gives
$g^2 \sum_d \sigma_{Q_d}^2\,(\sum_j p_j c_j \mu_{K_{jd}})^2$. Each weight's `gains`, the ratio of the variance of $p_j$
to its first order, account for higher orders. Everything is exact as the variances vanish.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from momentprop.kernels.logistic import COARSE, logistic_expectations
from momentprop.kernels.rows import along_contraction, along_rows
from momentprop.kernels.softmax import against_rivals, one_hot, present, step, without_own

_NEAR = 1.0  # variance of scores up to which the mean's second order is blended in
_SERIES = 0.5  # variance up to which three terms of a series are exact to 0.5 %
_DAMPING = 1e-6  # of the two ratios of sums that are one to first order


class Scores(NamedTuple):
    r"""Normal scores `(..., queries, keys)` with the known origins of their noise."""

    mean: Tensor
    private: Tensor | None = None  # variance of the noise that is independent between keys
    shared: Tensor | None = None  # u, variance of the noise of the query, seen from the average key
    query_variance: Tensor | None = None  # shape: (..., queries, features)
    keys: Tensor | None = None  # the means of the keys; shape: (..., keys, features)
    gain: Tensor | float = 1.0  # g: one number, or one for every score

    @property
    def noise(self) -> list[Tensor]:
        """The private and the shared variance, where they are present."""
        return [part for part in (self.private, self.shared) if part is not None]


class Weights(NamedTuple):
    """Mean and variance of the probabilities, of shape `(..., queries, keys)`."""

    mean: Tensor
    variance: Tensor


def scores(
    mean: Tensor,
    query: Tensor,
    query_variance: Tensor | None,
    key: Tensor,
    key_variance: Tensor | None,
    gain: Tensor | float,
) -> Scores:
    r"""The scores with the given `mean`, and the private and the shared part of their noise."""
    private = shared = None
    inside, outside = (1.0, gain * gain) if isinstance(gain, Tensor) else (gain * gain, None)
    if key_variance is not None:
        square = query * query if query_variance is None else query * query + query_variance
        private = _times((inside * square) @ key_variance.mT, outside)
    if query_variance is not None:
        key = key - key.mean(-2, keepdim=True)
        average = _Apart.of(along_rows(_most_probable_score, mean, results=_APART))
        top = _most_probable(average, key)
        scale = inside * query_variance
        factor = torch.cat((scale, -2 * scale * top.middle), -1)
        spread = factor @ torch.cat((key * key, key), -1).mT
        ends = _sum(scale * top.middle * top.middle), _sum(scale * top.deviation * top.deviation)
        (shared,) = along_rows(_from_average, spread, average.here, *ends, results=(True,))
        shared = _times(shared, outside)
    return Scores(mean, private, shared, query_variance, key, gain)


def _from_average(spread: Tensor, here: Tensor, rest: Tensor, own: Tensor) -> tuple[Tensor]:
    """The variance seen from the average key, a square up to rounding, and separately that of the most probable key."""
    return (torch.where(here > 0, own, (spread + rest).clamp(min=0.0)),)


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else factor * x


def weights(scores: Scores) -> Weights:
    r"""Mean and variance of the probabilities in closed form, $O(1)$ for each score.

    The mean is $E\,S(X_j - L_j)$ of `kernels.softmax.fast`, normalized, and for small variances the second order
    $\mathrm{softmax}(\mu_j + (\frac12 - p_j)\sigma_j^2 + \frac12 u_j)$. The variance is that of $S(X_j - L_j)$ where
    $L_j$ is shifted by one Newton step, so that the means sum to one. For 30 keys with independent scores spread by 2,
    the means are off by 5e-3 and the deviations of weights above 0.1 by 12 % at variances of 0.3; 0.06 and 25 % at 3.
    """
    noise = scores.noise
    if not noise:
        certain = _softmax(scores.mean)
        return Weights(certain, torch.zeros_like(certain))
    return Weights(*along_rows(partial(_probabilities, scores.private is not None), scores.mean, *noise))


def _probabilities(is_private: bool, mean: Tensor, *noise: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the weights for one or two kinds of noise, the first of which `is_private`."""
    mean, variance, absent = present(mean, _added(noise))
    gap, spread = against_rivals(mean, variance, absent)
    far = 100 + spread
    gap = torch.clamp(gap, -far, far)  # nothing changes beyond
    first, slope, excess = _logistic(gap, spread)

    tilt = 0.5 * variance - _softmax(mean) * noise[0] if is_private else 0.5 * variance
    typical = _sum(torch.softmax(0.5 * mean + 0.25 * variance, -1) * variance)  # of the keys with weight
    blend = step(typical / _NEAR)
    average = torch.where(absent, 0.0, blend * (first / (1 + excess)) + (1 - blend) * _softmax(mean + tilt))

    steepness = _sum(slope).clamp(min=torch.finfo(mean.dtype).tiny ** 0.5)
    shift = (torch.log1p(excess) * (1 + excess) / steepness).clamp(-5.0, 5.0)
    shifted, second = _logistic_moments(torch.clamp(gap - shift, -far, far), spread)
    found = second / _sum(shifted) ** 2
    return average, torch.minimum(found, average * _complement(average))


def mixture(
    scores: Scores, weights: Weights, value: Tensor, value_variance: Tensor | None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of $\sum_j p_j V_j$ for values $V_j$ that are independent of the scores.

    Their own noise adds $\sum_j E[p_j^2]\,\sigma_{V_j}^2$. Dropout multiplies weights by zero or, with probability
    $1 - r$, by $1/(1 - r)$; it divides that term by $1 - r$ and adds $\frac{r}{1-r}\sum_j E[p_j^2]\,\mu_{V_j}^2$.
    """
    average = weights.mean
    result = average @ value
    second = average * average + weights.variance
    variance = torch.zeros_like(result)
    if scores.noise:
        variance = _by_scores(scores, weights, value - value.mean(-2, keepdim=True))
    if value_variance is not None:
        variance = variance + second @ value_variance / (1 - dropout)
    if dropout > 0:
        variance = variance + dropout / (1 - dropout) * (second @ (value * value))
    return result, variance


def _by_scores(scores: Scores, weights: Weights, value: Tensor) -> Tensor:
    """The part of the average's variance that is due to the noise of the scores; `value` is centred."""
    average, noise = weights.mean, scores.noise
    is_private, is_shared = scores.private is not None, scores.shared is not None
    kernel = partial(_contributions, is_private, is_shared)
    results = _APART + _APART[1:] * is_private + (False,) * is_shared
    found = along_rows(kernel, average, weights.variance, *noise, results=results)
    parts, square = _Apart.of(found), value * value
    top = _most_probable(parts, value)
    given = [top.value, top.others, parts.others @ square, parts.own, parts.rest]
    if is_private:
        private = _Apart(parts.here, *found[4:7])
        given += [private.others @ value, private.others @ square, private.own, private.rest]
    if is_shared:
        given += [_along_query(top, scores, parts, value), found[-1]]
    return along_rows(partial(_total, is_private, is_shared), *given, results=(True,))[0]


def _total(
    is_private: bool,
    is_shared: bool,
    value: Tensor,
    others: Tensor,
    squares: Tensor,
    own: Tensor,
    rest: Tensor,
    *given: Tensor,
) -> list[Tensor]:
    """The variance by private and by shared noise."""
    deviation = rest * value - others
    middle = value - deviation
    variance: Tensor | float = 0.0
    if is_private:
        variance = _about(middle, deviation, *given[:4])
    if is_shared:
        along, gain = given[-2:]
        variance = variance + gain * along
    # Jensen: at most the variance of one value, drawn by the weights
    return [torch.minimum(torch.as_tensor(variance), _about(middle, deviation, others, squares, own, rest))]


def _contributions(is_private: bool, is_shared: bool, average: Tensor, spread: Tensor, *noise: Tensor) -> list[Tensor]:
    """The weights except the largest, then the contributions of private noise, then the gain of shared noise."""
    here = one_hot(average)
    gained = average * average * gains(Weights(average, spread), _added(noise))
    found = [here.to(average.dtype), *_apart(here, average)]
    if is_private:
        found += _apart(here, gained * noise[0])
    if is_shared:
        weight = average * average * noise[-1]
        found.append((_sum(gained * noise[-1]) + _DAMPING) / (_sum(weight) + _DAMPING))
    return found


def gains(weights: Weights, variance: Tensor) -> Tensor:
    r"""The factor by which each score's noise moves the average beyond first order, times $\lambda$.

    The factor is the variance of $p_j$ over its first order $q_j^2((1-q_j)^2\sigma_j^2 + \sum_{k\ne j}
    q_k^2\sigma_k^2)$. The number $\lambda$ makes $\sum_j \mathrm{Var}\,p_j$ equal $\sum_j a_j(1 - 2q_j + \sum_k
    q_k^2)$, its value for contributions $a_j$ to the average.
    """
    q = weights.mean
    rest = _complement(q)
    squares = q * q
    parts = squares * variance
    first = squares * (rest * rest * variance + without_own(parts))
    tiny = torch.finfo(q.dtype).tiny ** 0.5  # the derivative divides by its square
    gain = torch.where(first > tiny, weights.variance / first.clamp(min=tiny), 1.0)
    total = _sum(parts * gain * (rest * rest + without_own(squares)))
    return gain * (_sum(weights.variance) + _DAMPING) / (total + _DAMPING)


class _Apart(NamedTuple):
    """Each key's terms: that of the most probable key, separate from the others."""

    here: Tensor  # one for this key, otherwise zero
    own: Tensor  # its term
    others: Tensor  # the other terms, and zero for this key
    rest: Tensor  # their sum

    @classmethod
    def of(cls, found: Sequence[Tensor]) -> "_Apart":
        """Return the first results of a kernel; the mask has no derivative."""
        return cls(found[0].detach(), *found[1:4])


_APART = (True, False, True, False)


def _apart(here: Tensor, terms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    others = torch.where(here, 0.0, terms)
    return _sum(torch.where(here, terms, 0.0)), others, _sum(others)


def _most_probable_score(mean: Tensor) -> tuple[Tensor, ...]:
    average = _softmax(mean)
    here = one_hot(average)
    return here.to(average.dtype), *_apart(here, average)


class _Top(NamedTuple):
    r"""Each query's most probable key: if it is certain, its $c_j$ vanishes."""

    value: Tensor
    others: Tensor  # the sum of the other terms
    deviation: Tensor  # its c, to all digits

    @property
    def middle(self) -> Tensor:
        """The average value."""
        return self.value - self.deviation


def _most_probable(average: _Apart, value: Tensor) -> _Top:
    top, others = average.here @ value, average.others @ value
    return _Top(top, others, average.rest * top - others)


def _about(middle: Tensor, deviation: Tensor, simple: Tensor, squares: Tensor, own: Tensor, rest: Tensor) -> Tensor:
    r"""$\sum_j a_j c_j^2$, from the sums of $a_j$ times the other values, of their squares, and of ones."""
    spread = squares - 2 * middle * simple + middle * middle * rest
    # a sum of squares, up to rounding
    return spread.clamp(min=0.0) + own * deviation * deviation


def _along_query(top: _Top, scores: Scores, average: _Apart, value: Tensor) -> Tensor:
    r"""$\sum_d \sigma_{Q_d}^2 (\sum_j g p_j c_j \mu_{K_{jd}})^2$, of shape `(..., queries, features of the values)`."""
    assert scores.keys is not None
    assert scores.query_variance is not None
    gain, others, own = scores.gain, average.others, average.own
    if isinstance(gain, Tensor):
        own, others, _ = _apart(average.here > 0, (own * average.here + others) * gain)
    by_feature = (x.unsqueeze(-2) for x in (others @ scores.keys, average.here @ scores.keys, scores.query_variance))
    by_value = (x.unsqueeze(-1) for x in (top.middle, own * top.deviation))
    found = along_contraction(_squared_slope, others, value, scores.keys, *by_feature, *by_value)
    return found.squeeze(-1) if isinstance(gain, Tensor) else gain * gain * found.squeeze(-1)


def _squared_slope(
    slope: Tensor, level: Tensor, key: Tensor, variance: Tensor, middle: Tensor, own: Tensor
) -> tuple[Tensor]:
    slope = slope - middle * level + own * key
    return (_sum(slope * slope * variance),)


def _added(noise: Sequence[Tensor]) -> Tensor:
    return noise[0] if len(noise) == 1 else noise[0] + noise[1]


def _logistic(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""$E\,S(X)$, $E\,S'(X)$ and, to all digits, the sum of the first over the last dimension minus one."""
    positive = mean > 0
    (u, slope), _ = logistic_expectations(torch.where(positive, -mean, mean), variance, 1, COARSE)
    excess = _sum(torch.where(positive, -u, u)) + (_sum(positive) - 1)
    return torch.where(positive, 1 - u, u), slope, excess


def _logistic_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    r"""$E\,S(X)$ and $\mathrm{Var}\,S(X)$.

    Where it is small, the variance is the series $\sum_k \sigma^{2k}(E\,S^{(k)})^2/k!$; beyond, it is
    $E\,S^2 - (E\,S)^2$. The coarse mixture overestimates that far out, where the variance is that of $e^X$.
    """
    positive = mean > 0
    (u, slope, bend, third), (w, *_) = logistic_expectations(torch.where(positive, -mean, mean), variance, 3, COARSE)
    near = variance.clamp(max=_SERIES)
    series = near * (slope * slope + near * (bend * bend / 2 + near * (third * third / 6)))
    square = u * u
    beyond = torch.minimum((w - square).clamp(min=0.0), square * torch.expm1(variance.clamp(max=60.0)))
    return torch.where(positive, 1 - u, u), torch.where(variance <= _SERIES, series, beyond)


def _softmax(mean: Tensor) -> Tensor:
    """The softmax, and zero for a query with nothing to attend to."""
    mean, _, absent = present(mean, mean)
    return torch.where(absent, 0.0, torch.softmax(mean, -1))


def _complement(q: Tensor) -> Tensor:
    """One minus a probability, without cancellation for the largest."""
    top = one_hot(q)
    return torch.where(top, _sum(torch.where(top, 0.0, q)), 1 - q)


def _sum(terms: Tensor) -> Tensor:
    return terms.sum(-1, keepdim=True)
