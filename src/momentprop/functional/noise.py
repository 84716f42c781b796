r"""Adds noise of a known distribution, or multiplies by it.

The noise is the name of a distribution (see `momentprop.noise.named`), or a `torch.distributions.Distribution` with a
known mean and variance, which are all that AP2 needs.
"""

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Normal

from momentprop.dispatch import operation
from momentprop.noise.named import mapped, named, standard
from momentprop.values import Value


@operation
def add_noise(input: Tensor, noise: str | Distribution, training: bool = True) -> Tensor:
    r"""$X + Z$ with independent noise $Z$ for every element.

    On a tensor the noise is drawn in training and replaced by its mean otherwise, as dropout does.

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
    """Draws of the given shape; by quantiles where torch's own method fails under `vmap` or compilers."""
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
