"""The statistics of a data set, one mean and one variance per channel, as a value to propagate."""

import torch
from torch import Tensor

from momentprop.values.base import may_look_at
from momentprop.values.independent import Independent

_NAMED = 8  # the most channels that an error names


class Statistics(Independent):
    r"""Mean and variance of every channel over all examples of a data set and all positions: *one pixel*.

    It is made from two tensors of shape (channels,) and goes through a network instead of a batch. A convolution sums
    its kernel over space, $\mu' = \sum_k w\mu$ and $\sigma'^2 = \sum_k w^2\sigma^2$. Elementwise operations, dropout
    and stochastic layers act as on a `Normal`. For a linear layer on all pixels of an image, every channel is repeated
    as often as needed. Inside a network the value has the shape of a batch of one image of one pixel.

    >>> import torch
    >>> convolution = torch.nn.Conv2d(2, 1, 3, bias=False)
    >>> _ = torch.nn.init.constant_(convolution.weight, 0.5)
    >>> convolution(Statistics(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 4.0])))
    Statistics(loc=tensor([[[[4.5000]]]], grad_fn=<ViewBackward0>),
               variance=tensor([[[[11.2500]]]], grad_fn=<ViewBackward0>))

    `momentprop.input_statistics` estimates the statistics of a data set, and `momentprop.dataset_statistics` returns
    those at every module of a network. A channel of zero variance raises an error.
    """

    loc: Tensor
    variance: Tensor

    def __init__(
        self,
        loc: Tensor | float,
        variance: Tensor | float | None = None,
        *,
        stddev: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(loc, variance, stddev=stddev, validate_args=validate_args)
        if self.loc.ndim != 1:
            raise ValueError(
                f"statistics have one mean for each channel, a shape like (3,), but loc has {tuple(self.loc.shape)}: "
                "`momentprop.input_statistics(images)` computes them"
            )
        if may_look_at(self.variance, validate_args) and not bool((self.variance > 0).all()):
            raise ValueError(
                f"{named_channels(self.variance == 0)} of zero variance: leave out constant channels, or give them a "
                "small variance"
            )


class TrainingStatistics(Statistics):
    """`Statistics` on which dropout also acts in evaluation mode, as it does when the network is trained."""


def named_channels(which: Tensor) -> str:
    """Return the channels that a mask marks, in words.

    >>> import torch
    >>> named_channels(torch.tensor([True, False, True]))
    'channels 0, 2 are'
    """
    indices = [str(i) for i in torch.nonzero(which).flatten().tolist()]
    if len(indices) == 1:
        return f"channel {indices[0]} is"
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return f"channels {', '.join(indices[:_NAMED])}{more} are"
