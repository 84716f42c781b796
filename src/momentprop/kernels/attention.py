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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.codegen.contraction import product
from momentprop.kernels.logistic import COARSE, logistic_expectations
from momentprop.kernels.rows import along_contraction, along_rows
from momentprop.kernels.softmax import against_rivals, one_hot, present, step, without_own

_NEAR = 1.0  # variance of scores up to which the mean's second order is blended in
_SERIES = 0.5  # variance up to which three terms of a series are exact to 0.5 %
_DAMPING = 1e-6  # of the two ratios of sums that are one to first order


class Scores(NamedTuple):
    r"""Normal scores `(..., queries, keys)` with the known origins of their noise.

    `shared` is $u$, the variance of the query's noise seen from the average key, or what `_from_average` makes it of.
    """

    mean: Tensor
    private: Tensor | None = None  # variance of the noise that is independent between keys
    shared: Tensor | tuple[Tensor, ...] | None = None
    query_variance: Tensor | None = None  # of the query times g; shape: (..., queries, features)
    keys: Tensor | None = None  # the means of the keys; shape: (..., keys, features)
    gain: Tensor | None = None  # one for every score, where g is not the same for all

    @property
    def noise(self) -> list[Tensor]:
        """The private and the shared variance, where they are present."""
        shared = self.shared if isinstance(self.shared, tuple) else (self.shared,)
        return [part for part in (self.private, *shared) if part is not None]

    def whole(self) -> "Scores":
        """Return the scores with `shared` as one tensor."""
        if not isinstance(self.shared, tuple):
            return self
        (shared,) = along_rows(_from_average, self.mean, *self.shared, results=(True,))
        return self._replace(shared=_times(shared, self.gain))


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
    gain: Tensor | None = None,
) -> Scores:
    r"""The scores with the given `mean`, and the private and the shared part of their noise.

    The query is already multiplied by $g$, unless `gain` has one for every score.
    """
    private = shared = None
    if key_variance is not None:
        square = query * query if query_variance is None else torch.addcmul(query_variance, query, query)
        private = _times(product(square, key_variance.mT), gain)
    if query_variance is not None:
        key = key - key.mean(-2, keepdim=True)
        here, others, rest = along_rows(_most_probable_score, mean, results=(True, True, False), constants=1)
        given = (product(here, key), product(others, key), query_variance, rest)
        factor, *ends = along_rows(_seen_from, *given, results=(True, False, False))
        shared = (product(factor, key.mT, product(query_variance, (key * key).mT)), *ends)
    return Scores(mean, private, shared, query_variance, key, gain)


def _most_probable_score(mean: Tensor) -> tuple[Tensor, ...]:
    here = one_hot(mean)
    return here.to(mean.dtype), *_apart(here, _softmax(mean))[1:]


def _seen_from(top: Tensor, others: Tensor, variance: Tensor, rest: Tensor) -> tuple[Tensor, ...]:
    r"""$-2\sigma_Q^2\bar k$, and the variances of a key at zero and of the most probable key, seen from the average."""
    deviation = rest * top - others
    middle = top - deviation
    scaled = variance * middle
    return -2 * scaled, _sum(scaled * middle), _sum(variance * deviation * deviation)


def _from_average(mean: Tensor, spread: Tensor, rest: Tensor, own: Tensor) -> tuple[Tensor]:
    """The variance seen from the average key, a square up to rounding, and separately that of the most probable key."""
    return (torch.where(one_hot(mean), own, (spread + rest).clamp(min=0.0)),)


def _times(x: Tensor, gain: Tensor | None) -> Tensor:
    return x if gain is None else gain * gain * x


def weights(scores: Scores) -> Weights:
    r"""Mean and variance of the probabilities in closed form, $O(1)$ for each score.

    The mean is $E\,S(X_j - L_j)$ of `kernels.softmax.fast`, normalized, and for small variances the second order
    $\mathrm{softmax}(\mu_j + (\frac12 - p_j)\sigma_j^2 + \frac12 u_j)$. The variance is that of $S(X_j - L_j)$ where
    $L_j$ is shifted by one Newton step, so that the means sum to one. For 30 keys with independent scores spread by 2,
    the means are off by 5e-3 and the deviations of weights above 0.1 by 12 % at variances of 0.3; 0.06 and 25 % at 3.
    """
    if not scores.noise:
        certain = _softmax(scores.mean)
        return Weights(certain, torch.zeros_like(certain))
    return Weights(*along_rows(partial(_probabilities, scores.private is not None), scores.mean, *scores.noise))


def _probabilities(is_private: bool, mean: Tensor, *noise: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the weights for one or two kinds of noise, the first of which `is_private`."""
    parts = _settled(is_private, mean, noise)
    mean, variance, absent = present(mean, _added(parts))
    gap, spread = against_rivals(mean, variance, absent)
    far = 100 + spread
    gap = torch.clamp(gap, -far, far)  # nothing changes beyond
    first, slope, excess = _logistic(gap, spread)

    tilt = 0.5 * variance - _softmax(mean) * parts[0] if is_private else 0.5 * variance
    typical = _sum(torch.softmax(0.5 * mean + 0.25 * variance, -1) * variance)  # of the keys with weight
    blend = step(typical / _NEAR)
    average = torch.where(absent, 0.0, blend * (first / (1 + excess)) + (1 - blend) * _softmax(mean + tilt))

    steepness = _sum(slope).clamp(min=torch.finfo(mean.dtype).tiny ** 0.5)
    shift = (torch.log1p(excess) * (1 + excess) / steepness).clamp(-5.0, 5.0)
    shifted, second = _logistic_moments(torch.clamp(gap - shift, -far, far), spread)
    found = second / _sum(shifted) ** 2
    return average, torch.minimum(found, average * _complement(average))


def mixture(
    scores: Scores, weights: Weights | None, value: Tensor, value_variance: Tensor | None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of $\sum_j p_j V_j$ for values $V_j$ that are independent of the scores.

    Without `weights`, they are those of the scores. The values' noise adds $\sum_j E[p_j^2]\,\sigma_{V_j}^2$. Dropout
    multiplies weights by zero or, with probability $1 - r$, by $1/(1 - r)$; it divides that term by $1 - r$ and adds
    $\frac{r}{1-r}\sum_j E[p_j^2]\,\mu_{V_j}^2$.
    """
    noise = value_variance  # by which the second moments of the weights are multiplied
    if dropout > 0:
        noise = (value * value * dropout + (0.0 if noise is None else noise)) / (1 - dropout)
    if scores.noise:
        return _by_scores(scores, weights, value, noise)
    average, second = along_rows(_certain, scores.mean) if weights is None else _moments(*weights)
    result = product(average, value)
    return result, torch.zeros_like(result) if noise is None else product(second, noise)


def _certain(mean: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of certain scores and its square."""
    average = _softmax(mean)
    return average, average * average


def _moments(average: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    return average, average * average + variance


def _by_scores(scores: Scores, weights: Weights | None, value: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance for random scores, and for values with this `noise`; `kinds` names what the variance is of."""
    is_private, is_shared, is_noisy = (part is not None for part in (scores.private, scores.shared, noise))
    kinds = "private " * is_private + "shared " * is_shared + "noisy" * is_noisy
    kernel, given = (_weighed, (scores.mean,)) if weights is None else (_contributions, weights)
    results = _APART + _APART[1:] * is_private + (False,) * is_shared + (True,) * is_noisy
    found = along_rows(partial(kernel, kinds=kinds), *given, *scores.noise, results=results, constants=1)
    here, own, others, rest, *found = found
    level = value.mean(-2, keepdim=True)
    value = value - level
    square = value * value
    top, simple = product(here, value), product(others, value)
    # apart from the variance, whose graph would run for every derivative of the mean
    (mean,) = along_rows(_averaged, top, simple, level, own, rest, results=(True,))
    wide, narrow = [top, simple, product(others, square)], [own, rest]
    if is_private:
        own_noise, noises, rest_noise, *found = found
        wide += [product(noises, value), product(noises, square)]
        narrow += [own_noise, rest_noise]
    if is_shared:
        wide.append(_along_query(scores, _Apart(here, own, others, rest), value, top, simple))
        narrow.append(found.pop(0))
    if noise is not None:
        wide.append(product(found[0], noise))
    (variance,) = along_rows(partial(_total, kinds=kinds), *wide, *narrow, results=(True,))
    return mean, variance


def _averaged(top: Tensor, simple: Tensor, level: Tensor, own: Tensor, rest: Tensor) -> tuple[Tensor]:
    """The mean of values that are centred at a level, where the most probable key is apart."""
    return (own * top + simple + (own + rest) * level,)


def _total(*given: Tensor, kinds: str) -> tuple[Tensor]:
    """The variance by private noise, by shared noise and by the values' own."""
    parts = iter(given)
    top, simple, squares = (next(parts) for _ in range(3))
    private = [next(parts) for _ in range(2 * ("private" in kinds))]
    along = [next(parts) for _ in range("shared" in kinds)]
    added = [next(parts) for _ in range("noisy" in kinds)]
    own, rest = next(parts), next(parts)
    deviation = rest * top - simple
    middle = top - deviation
    variance: Any = 0.0
    if private:
        variance = _about(middle, deviation, private[0], private[1], next(parts), next(parts))
    if along:
        variance = variance + next(parts) * along[0]
    # Jensen: at most the variance of one value, drawn by the weights
    variance = torch.minimum(variance, _about(middle, deviation, simple, squares, own, rest))
    return (variance + added[0] if added else variance,)


def _weighed(mean: Tensor, *noise: Tensor, kinds: str) -> list[Tensor]:
    """The contributions of scores."""
    is_private = "private" in kinds
    average, spread = _probabilities(is_private, mean, *noise)
    return _contributions(average, spread, *_settled(is_private, mean, noise), kinds=kinds)


def _contributions(average: Tensor, spread: Tensor, *noise: Tensor, kinds: str) -> list[Tensor]:
    """The weights except the largest, the contributions of private noise, the gain of shared noise, and $E[p_j^2]$."""
    here = one_hot(average)
    gained = average * average * gains(Weights(average, spread), _added(noise))
    found = [here.to(average.dtype), *_apart(here, average)]
    if "private" in kinds:
        found += _apart(here, gained * noise[0])
    if "shared" in kinds:
        weight = average * average * noise[-1]
        found.append((_sum(gained * noise[-1]) + _DAMPING) / (_sum(weight) + _DAMPING))
    if "noisy" in kinds:
        found.append(average * average + spread)
    return found


def _settled(is_private: bool, mean: Tensor, noise: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the private and the shared variance, where they are present, each as one tensor."""
    shared = noise[is_private:]
    return (*noise[:is_private], *_from_average(mean, *shared)) if len(shared) > 1 else noise


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


_APART = (True, False, True, False)


def _apart(here: Tensor, terms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    others = torch.where(here, 0.0, terms)
    return _sum(torch.where(here, terms, 0.0)), others, _sum(others)


def _about(middle: Tensor, deviation: Tensor, simple: Tensor, squares: Tensor, own: Tensor, rest: Tensor) -> Tensor:
    r"""$\sum_j a_j c_j^2$, from the sums of $a_j$ times the other values, of their squares, and of ones."""
    spread = squares - 2 * middle * simple + middle * middle * rest
    # a sum of squares, up to rounding
    return spread.clamp(min=0.0) + own * deviation * deviation


def _along_query(scores: Scores, average: _Apart, value: Tensor, top: Tensor, simple: Tensor) -> Tensor:
    r"""$\sum_d \sigma_{Q_d}^2 (\sum_j g p_j c_j \mu_{K_{jd}})^2$, of shape `(..., queries, features of the values)`.

    The means of the values are those of the most probable key, `top`, and the sum of the others, `simple`.
    """
    assert scores.keys is not None
    assert scores.query_variance is not None
    here, own, others, rest = average
    if scores.gain is not None:
        own, others, _ = _apart(here > 0, (own * here + others) * scores.gain)
    by_key = [product(others, scores.keys), product(here, scores.keys), scores.query_variance, own, rest]
    rows = [*(x.unsqueeze(-2) for x in by_key), *(x.unsqueeze(-1) for x in (top, simple))]
    return along_contraction(_squared_slope, others, value, scores.keys, *rows).squeeze(-1)


def _squared_slope(
    slope: Tensor, level: Tensor, key: Tensor, variance: Tensor, own: Tensor, rest: Tensor, top: Tensor, simple: Tensor
) -> tuple[Tensor]:
    deviation = rest * top - simple
    slope = slope - (top - deviation) * level + own * deviation * key
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
