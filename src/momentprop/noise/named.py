r"""The noise $Z$ of latent variable models: named distributions, and the functions that units need of any noise.

Every noise has the form $Z = l + s Z_0$. The units use the distribution function $F$ of $Z_0$ and, to average over the
noise, its quantiles. These are functions of $t = \mathrm{logit}\,u$ instead of the probability $u$, so that rounding
loses neither tail.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, Gumbel, Laplace, Normal, Uniform

from momentprop.distributions import GumbelDistribution, LogisticDistribution
from momentprop.kernels.tails import cdf as normal_cdf
from momentprop.torch_compat.distributions import mapped

LARGEST = 32.0
"""The largest $t$ at which quantiles are evaluated: $10^{-14}$ of the noise lies beyond."""

_NAMED: dict[str, Callable[[], Distribution]] = {
    "logistic": lambda: LogisticDistribution(0.0, 1.0, validate_args=False),
    "normal": lambda: Normal(0.0, 1.0, validate_args=False),
    "uniform": lambda: Uniform(-0.5, 0.5, validate_args=False),
    "laplace": lambda: Laplace(0.0, 1.0, validate_args=False),
    "gumbel": lambda: GumbelDistribution(0.0, 1.0, validate_args=False),
}


def noise(given: str | Distribution) -> Distribution:
    r"""The noise with a name, or a distribution as noise.

    The names are `"logistic"`, `"normal"`, `"laplace"` and `"gumbel"`, with location 0 and scale 1, and `"uniform"`, on
    $[-\frac12, \frac12]$. A distribution must have a finite mean and variance; units check further needs, such as a
    distribution function `cdf` for binary units, when they use it. The result does not check its arguments, because
    units also evaluate the distribution function outside its support, for example of exponential noise.

    >>> noise("logistic")
    LogisticDistribution(loc: 0.0, scale: 1.0)
    >>> noise("cauchy")
    Traceback (most recent call last):
    ValueError: unknown noise 'cauchy': choose 'logistic', 'normal', 'uniform', 'laplace', 'gumbel', or give a
    distribution of `torch.distributions`
    """
    found = named(given)
    try:
        finite = bool(torch.isfinite(found.mean).all() & torch.isfinite(found.variance).all())
    except NotImplementedError:
        finite = False
    if not finite:
        raise ValueError(f"a noise must have a finite mean and variance, but this {type(found).__name__} does not")
    return unchecked(found)


def named(given: Any) -> Distribution:
    """As `noise`, but returns a distribution unchanged, so that compilers can trace it."""
    if isinstance(given, str):
        if given not in _NAMED:
            choices = ", ".join(map(repr, _NAMED))
            raise ValueError(
                f"unknown noise {given!r}: choose {choices}, or give a distribution of `torch.distributions`"
            )
        return _NAMED[given]()
    if not isinstance(given, Distribution):
        kind = type(given).__name__
        raise TypeError(f"a noise must be a name or a `torch.distributions.Distribution`, but this is a {kind}")
    if isinstance(given, Gumbel):
        return GumbelDistribution(given.loc, given.scale, validate_args=False)
    return given


def unchecked(noise: Distribution) -> Distribution:
    """A copy that does not check its arguments."""
    copied: Distribution = mapped(noise, lambda tensor: tensor)
    return copied


_Function = Callable[[Tensor], Tensor]


class StandardNoise(NamedTuple):
    """A noise as `loc` plus `scale` times a standard noise with these functions."""

    name: str
    loc: Tensor
    scale: Tensor
    cdf: Callable[[Tensor], Tensor]
    quantile: Callable[[Tensor], Tensor]  # of t, the logit of a probability
    position: Callable[[Tensor], Tensor]  # its inverse: the logit of the distribution function
    kinks: tuple[Any, ...] = ()  # where the distribution function is not smooth


def standard(noise: Distribution, like: Any) -> StandardNoise:
    """The noise in standard units, with parameters of the type and device of `like`."""

    def as_like(tensor: Tensor) -> Tensor:
        return tensor.to(like.device, like.dtype)

    if isinstance(noise, Uniform):
        left, right = as_like(noise.low), as_like(noise.high)
        return StandardNoise("uniform", 0.5 * (left + right), right - left, *_UNIFORM, (-0.5, 0.5))
    for kind, name, functions in _CLOSED:
        if isinstance(noise, kind):
            parameters: Any = noise
            return StandardNoise(name, as_like(parameters.loc), as_like(parameters.scale), *functions)
    loc, scale = as_like(noise.mean), as_like(noise.variance.sqrt())
    ends = [getattr(noise.support, name, None) for name in ("lower_bound", "upper_bound")]
    low, high = (None if end is None else as_like(torch.as_tensor(end)) for end in ends)
    free = noise if torch.compiler.is_compiling() else unchecked(noise)

    def cdf(x: Tensor) -> Tensor:
        return _asked(free, "cdf", "distribution function", _within(loc + scale * x, low, high))

    def quantile(t: Tensor) -> Tensor:
        return (_asked(free, "icdf", "quantile function", torch.sigmoid(t)) - loc) / scale

    def position(x: Tensor) -> Tensor:
        return torch.logit(cdf(x), eps=math.exp(-LARGEST))

    kinks = tuple((end - loc) / scale for end in (low, high) if end is not None)
    return StandardNoise("other", loc, scale, cdf, quantile, position, kinks)


def _within(x: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """Clip to the support, outside which torch's distribution functions are undefined."""
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _asked(noise: Distribution, method: str, what: str, argument: Tensor) -> Tensor:
    try:
        answer: Tensor = getattr(noise, method)(argument)
    except NotImplementedError:
        raise ValueError(
            f"the noise must have a {what}, but {type(noise).__name__} has no `{method}`: choose another noise"
        ) from None
    return answer


def _identity(t: Tensor) -> Tensor:
    return t


def _magnitude(x: Tensor) -> Tensor:
    """The absolute value, with a one-sided derivative at zero instead of none."""
    return torch.where(x > 0, x, -x)


def _normal_quantile(t: Tensor) -> Tensor:
    beyond = torch.special.ndtri(torch.sigmoid(-_magnitude(t)))  # negative: the left tail loses nothing
    return torch.where(t > 0, -beyond, beyond)


def _normal_position(x: Tensor) -> Tensor:
    below, above = normal_cdf(x), normal_cdf(-x)
    tiny = torch.finfo(x.dtype).tiny
    return below.clamp(min=tiny).log() - above.clamp(min=tiny).log()


def _laplace_cdf(x: Tensor) -> Tensor:
    beyond = 0.5 * torch.exp(-_magnitude(x))
    return torch.where(x > 0, 1 - beyond, beyond)


def _laplace_quantile(t: Tensor) -> Tensor:
    beyond = math.log(2) + F.logsigmoid(-_magnitude(t))  # negative
    return torch.where(t > 0, -beyond, beyond)


def _laplace_position(x: Tensor) -> Tensor:
    far = _magnitude(x)
    return torch.where(x > 0, 1.0, -1.0) * (far + torch.log1p(-torch.expm1(-far)))


def _uniform_cdf(x: Tensor) -> Tensor:
    return (x + 0.5).clamp(0.0, 1.0)


def _uniform_quantile(t: Tensor) -> Tensor:
    return 0.5 * torch.tanh(0.5 * t)


def _uniform_position(x: Tensor) -> Tensor:
    return torch.logit(_uniform_cdf(x), eps=1e-16 if x.dtype == torch.float64 else 1e-7)


def _gumbel_quantile(t: Tensor) -> Tensor:
    return -F.softplus(-t).log()


def _gumbel_position(x: Tensor) -> Tensor:
    inverse = torch.exp(-x.clamp(min=-4.0))
    return -(inverse + torch.log(-torch.expm1(-inverse)))  # -log(e^w - 1)


_gumbel_cdf = GumbelDistribution(0.0, 1.0, validate_args=False).cdf
_UNIFORM = _uniform_cdf, _uniform_quantile, _uniform_position
_CLOSED: tuple[tuple[type[Distribution], str, tuple[_Function, _Function, _Function]], ...] = (
    (LogisticDistribution, "logistic", (torch.sigmoid, _identity, _identity)),
    (Normal, "normal", (normal_cdf, _normal_quantile, _normal_position)),
    (Laplace, "laplace", (_laplace_cdf, _laplace_quantile, _laplace_position)),
    (GumbelDistribution, "gumbel", (_gumbel_cdf, _gumbel_quantile, _gumbel_position)),
)
