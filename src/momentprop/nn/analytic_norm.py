r"""Normalization by the statistics of the data set, computed from the weights, not from a batch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from momentprop.dispatch import where
from momentprop.rules.statistics.mixing import channels_of
from momentprop.values import Independent, Statistics


class Normalizer(NamedTuple):
    """The statistics at a layer, of shape (channels,), and the resulting affine map."""

    mean: Tensor
    variance: Tensor
    scale: Tensor
    shift: Tensor


class AnalyticNorm(nn.Module):
    r"""$\gamma(X - \mu)/\sqrt{\sigma^2 + \epsilon} + \beta$ with the statistics $\mu, \sigma^2$ of each channel.

    The statistics describe the whole data set, carried through the network as one pixel (`momentprop.Statistics`): they
    depend on the weights, not on a batch, and gradients flow through them. The layer keeps the statistics that pass
    through it and normalizes everything else by them. `momentprop.normalize` adds such layers to a model and sends the
    statistics of the current weights through it before every forward pass.

    >>> import torch, momentprop
    >>> layer = momentprop.nn.AnalyticNorm(2)
    >>> _ = layer(momentprop.Statistics(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 9.0])))
    >>> layer(torch.tensor([[3.0, 5.0]])).detach()
    tensor([[1.0000, 1.0000]])

    Args:
        channels: the number of channels.
        affine: whether to learn a scale $\gamma$ and a shift $\beta$.
        eps: a number to add to the variance.
        dim: the dimension of the channels: 1, as after a convolution, or -1.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, channels: int, affine: bool = True, *, eps: float = 1e-5, dim: int = 1) -> None:
        super().__init__()
        self.channels, self.eps, self.dim = channels, eps, dim
        self.register_parameter("weight", nn.Parameter(torch.ones(channels)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(channels)) if affine else None)
        self.normalizer: Normalizer | None = None  # part of an autograd graph, so neither copied nor saved
        self.meeting = False

    def forward(self, input: Any) -> Any:
        """Normalize the input; keep the first statistics that arrive after `forget`."""
        if isinstance(input, Statistics) and not (self.meeting and self.normalizer is not None):
            return self._met(input)
        if self.normalizer is None:
            raise RuntimeError(
                f"the AnalyticNorm at {where()} has no statistics: make the model with "
                "`momentprop.normalize(model, statistics)`, and call the whole model"
            )
        return self._mapped(input, self.normalizer)

    def _mapped(self, input: Any, normalizer: Normalizer) -> Any:
        scale, shift = (self._along(part, input) for part in (normalizer.scale, normalizer.shift))
        if isinstance(input, Independent):  # fused, because these are all units of a layer
            return input.of(torch.addcmul(shift, input.loc, scale), input.variance * (scale * scale))
        return torch.addcmul(shift, input, scale)

    def _met(self, input: Any) -> Statistics:
        """Normalize statistics by themselves: their mean becomes the learned shift."""
        in_place = self.dim == 1 or input.ndim == 1
        mean, variance, scale, _ = found = self._by(*channels_of(input if in_place else input.movedim(self.dim, 1)))
        if self.normalizer is None:  # otherwise checkpointing runs the layer again
            self.normalizer = found
        if input.loc.numel() > len(mean):  # there are positions
            return self._mapped(input, found)  # type: ignore[no-any-return]
        loc = torch.zeros_like(mean) if self.bias is None else self.bias.to(mean.dtype, copy=True)
        result: Statistics = input.of(self._along(loc, input), self._along(variance * scale * scale, input))
        return result

    def meet(self, mean: Tensor, variance: Tensor) -> None:
        """Normalize by these statistics from now on."""
        self.normalizer = self._by(mean, variance)

    def forget(self, *, meeting: bool = False) -> None:
        """Forget the statistics. During `meeting`, the first new ones serve all calls of the layer."""
        self.normalizer, self.meeting = None, meeting

    def _by(self, mean: Tensor, variance: Tensor) -> Normalizer:
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight.to(scale.dtype)
        shift = -mean * scale if self.bias is None else torch.addcmul(self.bias.to(scale.dtype), mean, scale, value=-1)
        return Normalizer(mean, variance, scale, shift)

    def _along(self, part: Tensor, input: Any) -> Tensor:
        shape = [1] * input.ndim
        shape[self.dim if input.ndim > 1 else 0] = -1
        return part.reshape(shape).to(input.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "normalizer": None}

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        dim = "" if self.dim == 1 else f", dim={self.dim}"
        return f"{self.channels}, affine={self.weight is not None}, eps={self.eps}{dim}"
