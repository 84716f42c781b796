"""Estimates the statistics of a data set in one pass over its inputs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.values import Statistics
from momentprop.values.statistics import named_channels

_AT_ONCE = 1000  # examples of a tensor


def input_statistics(inputs: Tensor | Iterable[Any]) -> Statistics:
    r"""Mean and variance of every channel over all examples and positions, by a streaming pass in float64.

    >>> import torch, momentprop
    >>> images = torch.arange(24.0).reshape(3, 2, 2, 2)  # examples, channels, height, width
    >>> momentprop.input_statistics(images)
    Statistics(loc=tensor([ 9.5000, 13.5000]),
               variance=tensor([43.9167, 43.9167]))
    >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, torch.zeros(3)), batch_size=2)
    >>> momentprop.input_statistics(loader).loc
    tensor([ 9.5000, 13.5000])

    Args:
        inputs: a tensor of examples, or batches of them: a `DataLoader`, or any iterable of tensors or of tuples that
            begin with a tensor. The channels are dimension 1; in inputs of two dimensions they are the features.
    """
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    kind, device = torch.get_default_dtype(), torch.device("cpu")
    for batch in _batches(inputs):
        channels = batch.movedim(1, -1).reshape(-1, batch.shape[1]).double()
        if count and channels.shape[1] != len(mean):
            raise ValueError(f"a batch has {channels.shape[1]} channels, but those before it have {len(mean)}")
        kind, device = torch.promote_types(batch.dtype, torch.float32), batch.device
        variance, center = torch.var_mean(channels, 0, correction=0)
        new, total = len(channels), count + len(channels)
        away = center - mean.to(device)
        mean = mean.to(device) + away * (new / total)
        squares = squares.to(device) + variance * new + away * away * (count * new / total)
        count = total
    if count == 0:
        raise ValueError("there are no inputs to compute statistics from: give at least one batch")
    if not bool(torch.isfinite(squares).all()):
        raise ValueError(f"{named_channels(~torch.isfinite(squares))} not finite: the inputs have NaN or infinities")
    return Statistics(mean.to(kind), (squares / count).to(kind))


def _batches(inputs: Any) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        inputs = inputs.split(_AT_ONCE)
    for given in inputs:
        batch = given[0] if isinstance(given, Sequence) and given else given
        if not isinstance(batch, Tensor):
            raise TypeError(
                f"a batch is a tensor, or a tuple that begins with one, but this is a {type(given).__name__}"
            )
        if not batch.is_floating_point():
            raise TypeError(
                f"inputs must be floating-point tensors, as the network takes them, but are {batch.dtype}: convert "
                "them first, such as by `x.float()`"
            )
        if batch.ndim < 2:
            raise ValueError(
                f"a batch must have the dimensions (examples, channels, ...), but this one has {tuple(batch.shape)}: "
                "write `x.unsqueeze(0)` for a single example"
            )
        if batch.numel():
            yield batch.detach()
