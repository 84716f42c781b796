"""Sends one pixel through a network: the statistics of a data set at every module."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from momentprop.dispatch.context import suspended
from momentprop.recording import Recording
from momentprop.rules.statistics.mixing import as_pixel, channels_of
from momentprop.torch_compat.replica import Replica
from momentprop.values import Statistics
from momentprop.values.structures import mapped

_SPATIAL = {
    1: (nn.Conv1d, nn.ConvTranspose1d),
    2: (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d),
    3: (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d),
}


def dataset_statistics(model: nn.Module, statistics: Statistics) -> dict[str, Any]:
    """The statistics of a data set at every module of a network, from those of its inputs, in one pass of one pixel.

    The keys are the paths of the modules, with `path#2` for a second call; the empty path holds the output. The
    statistics have the shape (channels,), and gradients flow through them. The model runs in its current mode and stays
    unchanged: in training mode dropout acts, and batch normalization uses the statistics.

    >>> import torch, momentprop
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    >>> inside = momentprop.dataset_statistics(model, momentprop.input_statistics(torch.rand(10, 1, 4, 4)))
    >>> {path: tuple(found.shape) for path, found in inside.items()}
    {'0': (2,), '1': (2,), '2': (2,), '3': (3,), '': (3,)}

    Args:
        model: any module of one input whose operations have a rule for one pixel: convolutions, linear layers, pooling,
            normalizations, elementwise operations, noise. Attention and recurrence have none.
        statistics: the statistics of the inputs, from `input_statistics`.
    """
    recording = Recording(model, Statistics, True, lambda _, tree: mapped(_channels, tree))
    replica = Replica(model)
    replica.own_buffers()  # so that no batch is counted
    with recording.on(replica), suspended():
        output = replica.model(as_input(model, statistics))
    return {**recording.values, "": mapped(_channels, output)}


def as_input(model: nn.Module, statistics: Any) -> Statistics:
    """The statistics as a batch of one input of one pixel, with the number of dimensions that the model expects."""
    if not isinstance(statistics, Statistics):
        raise TypeError(
            f"the statistics of the inputs are unknown: write `momentprop.input_statistics(inputs)` in place of a "
            f"{type(statistics).__name__}"
        )
    place = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), None)
    if place is not None:
        kind = torch.promote_types(place.dtype, torch.float32)
        statistics = statistics.each(lambda part: part.to(place.device, kind))
    loc, variance = channels_of(statistics)
    return as_pixel(statistics, loc.clone(), variance.clone(), spatial_dims(model, len(loc)))


def spatial_dims(model: nn.Module, channels: int) -> int:
    """The number of spatial dimensions of a model's inputs, from the first layer that determines it."""
    for module in model.modules():
        for dims, kinds in _SPATIAL.items():
            if isinstance(module, kinds):
                return dims
        if isinstance(module, nn.Linear):
            return 0 if module.in_features == channels else 2  # the flattened pixels of an image
    return 0


def _channels(x: Any) -> Any:
    """The statistics per channel, whichever dimension holds the channels."""
    if not isinstance(x, Statistics):
        return x
    if sum(size > 1 for size in x.shape) <= 1:
        return x.each(lambda part: part.reshape(-1).clone())
    return x.of(*channels_of(x))


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore the mode of each module afterwards."""
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, was in training.items():
            module.training = was
