r"""Moments of the logistic sigmoid and of the hyperbolic tangent."""

from functools import partial

import torch
from torch import Tensor

from momentprop.kernels.compose import chosen, rescaled
from momentprop.kernels.hermite import Change, Local, centred
from momentprop.kernels.logistic import logistic_expectations, logistic_jump
from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.nodes import HERMITE

_REACH = 0.9**2  # the variance up to which quadrature about the mean is the better method
_RULE = HERMITE[11]


def sigmoid_moments(mean: Tensor, variance: Tensor, centre: float = 0.0) -> Moments:
    r"""Moments of $S(X) - c$, for a `centre` $c$ of 0 or 1/2, evaluated at $-|\mu|$.

    Small variances use quadrature about the mean; large ones use the mixture of `kernels.logistic` for $u = E\,S(X)$
    and $w = E\,S(X)^2$, with $\sigma'^2 = w - u^2$.
    """
    positive = mean > 0
    left = torch.where(positive, -mean, mean)
    value = 0.5 * torch.tanh(0.5 * left) if centre == 0.5 else torch.sigmoid(left) - centre
    near = centred(value, _about(left), variance.clamp(max=_REACH), _RULE)
    moments = chosen(variance <= _REACH, near, _by_mixture(left, variance.clamp(min=_REACH), centre))

    def partials() -> Partials:
        assert moments.partials is not None
        (by_mean, spread_by_mean), (by_variance, spread_by_variance) = moments.partials()
        sign = torch.where(positive, -1.0, 1.0)
        return (by_mean, sign * spread_by_mean), (sign * by_variance, spread_by_variance)

    result = torch.where(positive, (1 - 2 * centre) - moments.mean, moments.mean)
    return Moments(torch.where(mean == 0, 0.5 - centre, result), moments.variance, partials)


def _about(mean: Tensor) -> Local:
    start = torch.sigmoid(mean), torch.sigmoid(-mean)

    def local(offset: Tensor, upward: bool) -> Change:
        low, high = torch.sigmoid(mean + offset), torch.sigmoid(-mean - offset)

        def derivatives() -> tuple[Tensor, Tensor]:
            slope = low * high
            return slope, slope * (high - low)

        return logistic_jump(start, (low, high), offset, upward), derivatives

    return local


def _by_mixture(mean: Tensor, variance: Tensor, centre: float) -> Moments:
    (u, _), (w,) = logistic_expectations(mean, variance, 1)

    def partials() -> Partials:
        (_, slope, bend, _), (_, second_slope, second_bend) = logistic_expectations(mean, variance, 3)
        return (slope, second_slope - 2 * u * slope), (0.5 * bend, 0.5 * second_bend - u * bend)

    # the fit of w is absolute: far out in the tail, where both are below 1e-9, it can fall below u^2
    return Moments(u - centre, (w - u * u).clamp(min=0.0), partials)


tanh_moments = rescaled(partial(sigmoid_moments, centre=0.5), inner=2.0, outer=2.0)
