r"""Injected noise, and activations with a noisy input."""

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Normal

from momentprop import functional
from momentprop.functional.noise import require_depth
from momentprop.noise.named import noise
from momentprop.torch_compat.distributions import mapped
from momentprop.torch_compat.modules import Moving


class Noisy(Moving):
    """A layer with noise, which moves with the layer to another device or type. Not saved in `state_dict`."""

    def __init__(self, given: str | Distribution) -> None:
        super().__init__()
        self.noise = noise(given)

    def moved(self, move: Callable[[Tensor], Tensor]) -> None:
        """Move the noise with the layer."""
        self.noise = mapped(self.noise, move)

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        return f"noise={self.noise}"


class AdditiveNoise(Noisy):
    r"""$X + Z$ with independent noise $Z$ for every element.

    >>> import torch, momentprop
    >>> layer = momentprop.nn.AdditiveNoise(torch.distributions.Uniform(0.0, 1.0))
    >>> layer(momentprop.Normal(torch.ones(1), 0.25))
    Normal(loc=tensor([1.5000]),
           variance=tensor([0.3333]))
    >>> layer.eval()(torch.ones(1))
    tensor([1.5000])

    Args:
        noise: a name (see `momentprop.noise.named.noise`) or a `torch.distributions.Distribution`.
    """

    def __init__(self, noise: str | Distribution) -> None:
        super().__init__(noise)

    def forward(self, input: Any) -> Any:
        """Add the noise."""
        return functional.add_noise(input, self.noise, self.training)


class GaussianNoise(nn.Module):
    r"""$X + Z$ with normal $Z$ of mean zero.

    >>> import torch, momentprop
    >>> momentprop.nn.GaussianNoise(0.5)(momentprop.Normal(torch.ones(1), 1.0)).variance
    tensor([1.2500])

    Args:
        std: the standard deviation: a number, a tensor that broadcasts to the input, or an `nn.Parameter` to learn.
    """

    std: Tensor | float

    def __init__(self, std: Tensor | float) -> None:
        super().__init__()
        smallest = float(std.detach().min()) if isinstance(std, Tensor) else std
        if not smallest >= 0:
            raise ValueError(f"a standard deviation must not be negative, but std is {smallest}")
        if isinstance(std, Tensor) and not isinstance(std, nn.Parameter):
            self.register_buffer("std", std)
        else:
            self.std = std

    def forward(self, input: Any) -> Any:
        """Add the noise."""
        scale = torch.as_tensor(self.std, dtype=input.dtype, device=input.device)
        noise = Normal(torch.zeros_like(scale), scale, validate_args=False)
        return functional.add_noise(input, noise, self.training)

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        if isinstance(self.std, Tensor):
            return f"std={self.std.item()}" if self.std.numel() == 1 else f"std of shape {tuple(self.std.shape)}"
        return f"std={self.std}"


class MultiplicativeNoise(Noisy):
    r"""$X Z$, or $X Z / E Z$ if `normalized`, with independent noise $Z$ for every element.

    >>> import torch, momentprop
    >>> x = momentprop.Normal(torch.ones(1), 0.5)
    >>> momentprop.nn.MultiplicativeNoise.dropout(0.5)(x).variance, torch.nn.Dropout(0.5)(x).variance
    (tensor([2.]), tensor([2.]))

    Args:
        noise: a name (see `momentprop.noise.named.noise`) or a `torch.distributions.Distribution`.
        normalized: divide by the mean of the noise, so that the layer does not change the mean of its input.
    """

    def __init__(self, noise: str | Distribution, normalized: bool = False) -> None:
        super().__init__(noise)
        self.normalized = normalized
        if normalized and bool((self.noise.mean == 0).any()):
            raise ValueError("noise of mean zero cannot be normalized to mean one: leave out `normalized=True`")

    @classmethod
    def dropout(cls, p: float) -> Self:
        """Dropout: Bernoulli noise that is zero with probability `p`, normalized."""
        return cls(Bernoulli(torch.tensor(1.0 - _rate(p))), normalized=True)

    @classmethod
    def gaussian_dropout(cls, p: float) -> Self:
        r"""Gaussian dropout: normal noise with the moments of dropout, mean 1 and variance $p/(1-p)$."""
        p = _rate(p)
        return cls(Normal(1.0, math.sqrt(p / (1 - p)), validate_args=False))

    def forward(self, input: Any) -> Any:
        """Multiply by the noise."""
        result = functional.multiply_noise(input, self.noise, self.training)
        return result / self.noise.mean.to(input.device, input.dtype) if self.normalized else result

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        return f"{super().extra_repr()}, normalized={self.normalized}"


def _rate(p: float) -> float:
    if not 0 <= p < 1:
        raise ValueError(f"a dropout probability must be at least 0 and less than 1, but p is {p}")
    return p


class StochasticDepth(nn.Module):
    r"""Drops an example's residual branch with probability `p`, and scales the others by $1/(1-p)$.

    >>> import torch, momentprop
    >>> layer = momentprop.nn.StochasticDepth(0.5)
    >>> layer(momentprop.Normal(torch.ones(1, 2), 0.0)).variance
    tensor([[1., 1.]])
    >>> layer.eval()(torch.ones(1, 2))
    tensor([[1., 1.]])

    Args:
        p: the probability that a branch is dropped.
        mode: `"row"` draws for every example, `"batch"` once for the whole batch.
    """

    def __init__(self, p: float, mode: Literal["row", "batch"] = "row") -> None:
        super().__init__()
        require_depth(p, mode)
        self.p, self.mode = p, mode

    def forward(self, input: Any) -> Any:
        """Drop examples."""
        return functional.stochastic_depth(input, self.p, self.mode, self.training)

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        return f"p={self.p}, mode={self.mode}"


class NoisyActivation(Noisy):
    r"""$f(X - Z)$ for an elementwise function $f$ and independent noise $Z$.

    >>> import torch, momentprop
    >>> layer = momentprop.nn.NoisyActivation(torch.tanh, "normal")
    >>> layer(momentprop.Normal(torch.ones(1), 1.0)).loc, layer(momentprop.Mean(torch.ones(1))).loc
    (tensor([0.4521]), tensor([0.5504]))

    Args:
        function: a function or module with a rule on `Normal`; `momentprop.elementwise` makes one from any function.
        noise: a name (see `momentprop.noise.named.noise`) or a `torch.distributions.Distribution`. For the expectation
            on tensors and means, noise other than normal must have quantiles (`icdf`).
    """

    def __init__(self, function: Callable[[Any], Any], noise: str | Distribution = "normal") -> None:
        super().__init__(noise)
        if not callable(function):
            raise TypeError(
                f"a noisy activation needs a function, such as `torch.relu`, but got a {type(function).__name__}"
            )
        self.function = function

    def forward(self, input: Any) -> Any:
        """Subtract the noise and apply the function."""
        return functional.noisy_activation(input, self.function, self.noise, self.training)

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        if isinstance(self.function, nn.Module):
            return super().extra_repr()
        return f"{getattr(self.function, '__name__', self.function)}, {super().extra_repr()}"


class StochasticReLU(NoisyActivation):
    r"""The stochastic rectifier $\max(0, X - Z)$.

    >>> import torch, momentprop
    >>> momentprop.nn.StochasticReLU("logistic").eval()(torch.tensor([-3.0, 0.0, 3.0]))  # the softplus function
    tensor([0.0486, 0.6931, 3.0486])
    """

    def __init__(self, noise: str | Distribution = "normal") -> None:
        super().__init__(torch.relu, noise)
