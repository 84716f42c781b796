"""Initialization: scales weights front to back, so that the outputs of every layer have mean 0 and variance 1."""

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from momentprop.dispatch.context import suspended
from momentprop.errors import UserError
from momentprop.markdown import table
from momentprop.nn.analytic_norm import AnalyticNorm
from momentprop.normalization.pixel import as_input, evaluating
from momentprop.rules.statistics.mixing import channels_of
from momentprop.torch_compat.replica import Replica
from momentprop.undoing import leaves_no_trace, undo_at_the_end
from momentprop.values import Statistics
from momentprop.values.statistics import named_channels

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
"""The layers that are scaled and normalized."""


@dataclass
class Layer:
    """The change of a layer in words, and the statistics of its outputs before it, one for each channel."""

    path: str
    mean: Tensor | None
    deviation: Tensor | None
    done: str


@dataclass
class Initialization:
    """The report of `initialize`, layer by layer in the order of their calls; `print` shows it as a table."""

    method: str
    layers: list[Layer]

    def __str__(self) -> str:
        rows = [(layer.path, _range(layer.mean), _range(layer.deviation), layer.done) for layer in self.layers]
        return table(("layer", "mean before", "deviation before", "done"), rows)


def _range(channels: Tensor | None) -> str:
    if channels is None:
        return "-"
    low, high = float(channels.min()), float(channels.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


@leaves_no_trace
@torch.no_grad()
def initialize(
    model: nn.Module, statistics: Statistics | Tensor, method: Literal["analytic", "batch"] = "analytic"
) -> Initialization:
    r"""Scale the layers of a model so that the outputs of each have mean 0 and variance 1 in every channel.

    Front to back, the weights and the bias $w, b$ of each linear layer and convolution become $w/\sigma$ and
    $(b - \mu)/\sigma$, with the mean and the deviation of its outputs over the data set and all positions. The
    method `"analytic"` carries these through the network as one pixel; `"batch"` measures them on a batch of inputs,
    with noise replaced by its mean (the paper's re-initialization "with BN"). The model is changed in place, in
    evaluation mode. A layer without a bias is only scaled, a layer called several times is set by its first call, a
    constant channel is not scaled, and everything else stays unchanged.

    >>> import torch, momentprop
    >>> images = torch.rand(100, 1, 8, 8)
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    >>> report = momentprop.initialize(model, momentprop.input_statistics(images))
    >>> [(layer.path, layer.done) for layer in report.layers]
    [('0', 'scaled and shifted'), ('3', 'scaled and shifted')]
    >>> report = momentprop.initialize(model, images, method="batch")
    >>> torch.allclose(model(images).std(0, correction=0), torch.ones(2), atol=1e-3)
    True

    Args:
        model: any module of one input. For `"analytic"` its operations need rules for one pixel.
        statistics: the statistics of the inputs, from `input_statistics`, or for `"batch"` a batch of inputs.
        method: `"analytic"` or `"batch"`.
    """
    if method not in ("analytic", "batch"):
        raise ValueError(f"unknown method {method!r}: choose 'analytic' or 'batch'")
    if method == "batch" and (isinstance(statistics, Statistics) or not isinstance(statistics, Tensor)):
        raise TypeError(
            f"method='batch' takes a batch of inputs as a tensor, but was given a {type(statistics).__name__}"
        )
    given: Any = as_input(model, statistics) if method == "analytic" else statistics
    replica = Replica(model)
    walk, runs = _Walk(replica), replica.module
    undo_at_the_end(walk.undo)
    with walk.on(replica), evaluating(runs), suspended():
        # not the call of the module: a hook of a normalized model would compute statistics, and change its layers'
        # inputs
        (runs if isinstance(runs, LAYERS) else runs.forward)(given)
    report = walk.report()
    walk.before.clear()  # the walk has not failed
    return Initialization(method, report)


class _Walk:
    """Sets every layer of a model at its first call, in a pass of the model's replica."""

    def __init__(self, replica: Replica) -> None:
        model = replica.module
        self.paths = {module: path for path, module in model.named_modules() if isinstance(module, LAYERS)}
        self.before = [(p, p.clone()) for layer in self.paths for p in layer.parameters()]  # to undo a walk that fails
        self.done: dict[nn.Module, Layer] = {}
        for norm in model.modules():  # their inputs have mean 0 and variance 1 once the layers before them are set
            if isinstance(norm, AnalyticNorm):
                like = next(iter(norm.parameters()), torch.empty(0))
                norm.meet(like.new_zeros(norm.channels), like.new_ones(norm.channels))

    def on(self, replica: Replica) -> contextlib.AbstractContextManager[None]:
        """Set the layers while the replica runs inside this context."""
        return replica.hooked([(layer, self._set) for layer in self.paths])

    @torch.no_grad()
    def undo(self) -> None:
        """Put the parameters back, if the walk has failed."""
        for parameter, before in self.before:
            parameter.copy_(before)

    def report(self) -> list[Layer]:
        """The changes of all layers."""
        missed = [
            Layer(path, None, None, "never called") for module, path in self.paths.items() if module not in self.done
        ]
        return [*self.done.values(), *missed]

    def _set(self, layer: Any, _: Any, output: Any) -> Any:
        if layer in self.done:
            return None
        path = self.paths[layer]
        dim = -1 if isinstance(layer, nn.Linear) else 1
        mean, variance = _moments(output, dim)
        finite = torch.isfinite(mean) & torch.isfinite(variance)
        if not bool(finite.all()):
            raise UserError(
                f"layer {path!r} cannot be scaled: {named_channels(~finite)} not finite in its outputs; check the "
                "inputs and the weights"
            )
        scale = torch.where(variance > 0, variance.rsqrt(), 1.0)
        shift = torch.zeros_like(mean) if layer.bias is None else mean
        _rescale(layer, path, shift, scale)
        self.done[layer] = Layer(path, mean, variance.sqrt(), _words(layer, variance))
        shape = [1] * output.ndim
        shape[dim] = -1
        return (output - shift.reshape(shape)) * scale.reshape(shape)


def _moments(output: Any, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, of a batch or from statistics."""
    last = output.movedim(dim, -1)
    if isinstance(output, Statistics):
        return channels_of(last.reshape(-1, last.shape[-1]))
    variance, mean = torch.var_mean(last.reshape(-1, last.shape[-1]), 0, correction=0)
    return mean, variance


def _words(layer: Any, variance: Tensor) -> str:
    words = "scaled" if layer.bias is None else "scaled and shifted"
    constant = int((variance == 0).sum())
    return f"{words}, except for {constant} constant channels" if constant else words


def _rescale(layer: Any, path: str, shift: Tensor, scale: Tensor) -> None:
    """Subtract `shift` (zero if the layer has no bias) from the outputs of a layer, then multiply by `scale`."""
    if parametrize.is_parametrized(layer):
        raise UserError(
            f"the weight of layer {path!r} is parametrized, so it cannot be scaled: call "
            "`torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')` first"
        )
    layer.weight.mul_(per_output(layer, scale))
    if layer.bias is not None:
        layer.bias.copy_((layer.bias - shift) * scale)


def per_output(layer: Any, scale: Tensor) -> Tensor:
    """A factor for each output channel, in a shape that broadcasts to the weight."""
    scale = scale.to(layer.weight.dtype)
    ones = [1] * (layer.weight.ndim - 2)
    if not isinstance(layer, TRANSPOSED):
        return scale.reshape(-1, 1, *ones)
    return (
        scale.reshape(layer.groups, 1, -1, *ones).repeat_interleave(layer.in_channels // layer.groups, 1).flatten(0, 1)
    )
