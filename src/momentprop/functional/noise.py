r"""Adds noise with a known distribution, or multiplies by it.

The noise is the name of a distribution (see `momentprop.noise.named`), or a `torch.distributions.Distribution` with a
known mean and variance, all that AP2 needs.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Normal

from momentprop.dispatch import operation
from momentprop.noise.named import named, standard
from momentprop.torch_compat.distributions import mapped
from momentprop.values import Value


@operation
def add_noise(input: Tensor, noise: str | Distribution, training: bool = True) -> Tensor:
    r"""$X + Z$ with independent noise $Z$ for every element.

    On a tensor, it draws the noise in training and replaces it by its mean otherwise, like dropout.

    >>> import torch, momentprop
    >>> momentprop.functional.add_noise(momentprop.Normal(torch.ones(2), 1.0), torch.distributions.Laplace(0.0, 1.0))
    Normal(loc=tensor([1., 1.]),
           variance=tensor([3., 3.]))
    """
    return input + (draw_like(input, noise) if training else noise_moments(noise, input)[0])


@operation
def multiply_noise(input: Tensor, noise: str | Distribution, training: bool = True) -> Tensor:
    r"""$X Z$ with independent noise $Z$ for every element; dropout is Bernoulli noise, scaled by its mean."""
    return input * (draw_like(input, noise) if training else noise_moments(noise, input)[0])


@operation
def stochastic_depth(input: Tensor, p: float, mode: Literal["row", "batch"] = "row", training: bool = True) -> Tensor:
    r"""$X B / (1 - p)$, where $B$ is zero with probability `p` for a whole example: drops a residual branch.

    An example's units share one draw (`mode="row"`), or the whole batch's do (`mode="batch"`). It is
    `torchvision.ops.stochastic_depth` as an operation with rules. Like dropout, it acts only in training.

    >>> import torch, momentprop
    >>> momentprop.functional.stochastic_depth(momentprop.Normal(torch.ones(1, 2), 0.0), 0.5).variance
    tensor([[1., 1.]])
    """
    require_depth(p, mode)
    if not training or p == 0:
        return input
    if p == 1:
        return torch.zeros_like(input)
    ones = [1] * input.ndim
    kept = torch.full([input.shape[0], *ones[1:]] if mode == "row" else ones, 1 - p, dtype=input.dtype)
    return input * torch.bernoulli(kept.to(input.device)) / (1 - p)


def require_depth(p: float, mode: str) -> None:
    """Refuse a probability or mode that stochastic depth does not allow."""
    if not 0 <= p <= 1:
        raise ValueError(f"a probability must lie between 0 and 1, but p is {p}")
    if mode not in ("row", "batch"):
        raise ValueError(f"unknown mode {mode!r}: choose 'row' or 'batch'")


def noise_moments(noise: str | Distribution, like: Tensor | Value) -> tuple[Tensor, Tensor]:
    """Mean and variance of the noise, in the type and on the device of `like`."""
    found = named(noise)
    return found.mean.to(like.device, like.dtype), found.variance.to(like.device, like.dtype)


def draw_like(input: Tensor, noise: str | Distribution) -> Tensor:
    """An independent draw of the noise for every element of `input`, with derivatives by the noise's parameters."""
    found = named(noise)
    if found.mean.device != input.device:
        found = mapped(found, lambda tensor: tensor.to(input.device))
    try:
        found.mean.expand(input.shape)
    except RuntimeError:
        raise ValueError(
            f"noise of shape {tuple(found.batch_shape)} does not broadcast to an input of shape {tuple(input.shape)}"
        ) from None
    return _drawn(found, input.shape).to(input)


def _drawn(noise: Distribution, shape: torch.Size) -> Tensor:
    """Draws of the given shape, by quantiles where torch's own method fails under `vmap` or compilers."""
    like = noise.mean
    if isinstance(noise, Normal):
        return noise.loc + noise.scale * torch.randn(shape, dtype=like.dtype, device=like.device)
    if isinstance(noise, Bernoulli):
        return torch.bernoulli(noise.probs.expand(shape))
    own = standard(noise, like)
    if own.name != "other":
        t = torch.logit(torch.rand(shape, dtype=like.dtype, device=like.device), eps=torch.finfo(like.dtype).eps)
        return own.loc + own.scale * own.quantile(t)
    wide = noise.expand(shape)
    drawn: Tensor = wide.rsample() if wide.has_rsample else wide.sample()
    return drawn
