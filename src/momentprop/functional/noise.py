r"""Noise of a known distribution, injected additively or multiplicatively.

The noise is a `torch.distributions.Distribution` with a known mean and variance, which are all that AP2 needs.
"""

from torch import Tensor
from torch.distributions import Distribution

from momentprop.dispatch import operation
from momentprop.values import Value


@operation
def add_noise(input: Tensor, noise: Distribution, training: bool = True) -> Tensor:
    r"""$X + Z$ with independent noise $Z$ for every element.

    On a tensor the noise is drawn in training and replaced by its mean otherwise, as dropout does.

    >>> import torch, momentprop
    >>> momentprop.functional.add_noise(momentprop.Normal(torch.ones(2), 1.0), torch.distributions.Laplace(0.0, 1.0))
    Normal(loc=tensor([1., 1.]),
           variance=tensor([3., 3.]))
    """
    return input + (draw_like(input, noise) if training else noise_moments(noise, input)[0])


@operation
def multiply_noise(input: Tensor, noise: Distribution, training: bool = True) -> Tensor:
    r"""$X Z$ with independent noise $Z$ for every element; dropout is Bernoulli noise, scaled by its mean."""
    return input * (draw_like(input, noise) if training else noise_moments(noise, input)[0])


def noise_moments(noise: Distribution, like: Tensor | Value) -> tuple[Tensor, Tensor]:
    """Mean and variance of the noise, in the type and on the device of `like`."""
    return noise.mean.to(like.device, like.dtype), noise.variance.to(like.device, like.dtype)


def draw_like(input: Tensor, noise: Distribution) -> Tensor:
    """An independent draw of the noise for every element of `input`."""
    try:
        drawn: Tensor = noise.expand(input.shape).sample().to(input)
    except RuntimeError:
        raise ValueError(
            f"noise of shape {tuple(noise.batch_shape)} does not broadcast to an input of shape {tuple(input.shape)}"
        ) from None
    return drawn
