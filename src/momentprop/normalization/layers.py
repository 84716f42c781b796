"""Adds normalization layers to a model; a pass of one pixel before every forward pass feeds them."""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.dispatch.context import suspended
from momentprop.errors import UserError
from momentprop.nn.analytic_norm import AnalyticNorm
from momentprop.normalization.initialization import LAYERS
from momentprop.normalization.pixel import as_input, evaluating
from momentprop.torch_compat.modules import BatchNorm, hooks_after, hooks_before
from momentprop.values import Statistics
from momentprop.values.statistics import TrainingStatistics, named_channels

LOC, VARIANCE = "statistics_loc", "statistics_variance"
"""The names of the buffers of a normalized model that hold the statistics of its inputs."""


class Normalized(nn.Sequential):
    """A layer and the normalization of its outputs."""

    def __init__(self, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__(OrderedDict([("layer", layer), ("norm", norm)]))


def normalize(model: nn.Module, statistics: Statistics) -> nn.Module:
    r"""A copy of a model in which every linear layer and convolution is followed by a `momentprop.nn.AnalyticNorm`.

    It replaces each batch normalization and keeps its scale and shift; elsewhere a layer `fc` becomes `fc.layer` and
    `fc.norm`. A normalized layer loses its bias. Before every forward pass of the whole model, a pass of one pixel
    computes the statistics of the current weights, including noise as it acts in training. The gradients of the loss
    flow through them, so the model trains like any other, by any method. `momentprop.fold` turns it into a plain
    network.

    >>> import torch, momentprop
    >>> images = torch.rand(100, 1, 8, 8)
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    >>> model = momentprop.normalize(model, momentprop.input_statistics(images))
    >>> model[1]
    AnalyticNorm(4, affine=True, eps=1e-05)
    >>> model(images).sum().backward()
    >>> torch.allclose(momentprop.fold(model)(images), model(images), atol=1e-5)
    True

    Args:
        model: any module of one input whose operations have rules for one pixel. A model that has `AnalyticNorm`s
            keeps them, and only gets the statistics.
        statistics: the statistics of the inputs, from `momentprop.input_statistics`.
    """
    model = copy.deepcopy(model)
    followers = Followers(model, as_input(model, statistics))
    for norm in followers.norms:
        if isinstance(norm, BatchNorm):
            model = replaced(model, norm, _like_batch_norm(norm))
    for layer, found in followers.of_layers.items():
        if None in found:
            channels = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
            norm = AnalyticNorm(channels, dim=-1 if isinstance(layer, nn.Linear) else 1)
            model = replaced(model, layer, Normalized(layer, norm.to(layer.weight.device, layer.weight.dtype)))
        layer.bias = None
    attach(model, statistics)
    _require_spread(model)
    return model


def _like_batch_norm(norm: BatchNorm) -> AnalyticNorm:
    made = AnalyticNorm(norm.num_features, affine=norm.affine, eps=norm.eps)
    made.weight, made.bias = norm.weight, norm.bias
    return made.train(norm.training)


def attach(model: nn.Module, statistics: Statistics) -> None:
    """Let a model with `AnalyticNorm`s compute their statistics from those of its inputs before every pass."""
    for path, module in model.named_modules():
        if path and any(isinstance(hook, _Refresh) for hook in hooks_before(module).values()):
            raise UserError(
                f"module {path!r} is already normalized as a model of its own: normalize only the whole model"
            )
    pixel = as_input(model, statistics)
    for name, part in ((LOC, pixel.loc), (VARIANCE, pixel.variance)):
        if isinstance(getattr(model, name, None), Tensor):
            getattr(model, name).copy_(part.flatten())
        else:
            model.register_buffer(name, part.flatten().clone())
    detach(model)
    model.register_forward_pre_hook(_Refresh(pixel.ndim - 2))
    model.register_forward_hook(_settle)


def detach(model: nn.Module) -> None:
    """Undo `attach`, except for the buffers."""
    for some in (hooks_before(model), hooks_after(model)):
        for key in [key for key, hook in some.items() if isinstance(hook, _Refresh) or hook is _settle]:
            del some[key]


class _Refresh:
    """A hook before a forward pass: sends one pixel through the model, so that its `AnalyticNorm`s get statistics."""

    def __init__(self, dims: int) -> None:
        self.dims = dims

    def __call__(self, model: nn.Module, args: Any) -> None:
        meeting = _meets(args)
        for norm in _norms(model):
            norm.forget(meeting=meeting)
        if not meeting:
            with suspended(), torch.autocast(getattr(model, LOC).device.type, enabled=False):
                model(self.pixel(model))

    def pixel(self, model: nn.Module) -> Statistics:
        """The statistics of the inputs, on which noise acts as in training."""
        shape = [1, -1] + [1] * self.dims
        loc, variance = (getattr(model, name).reshape(shape) for name in (LOC, VARIANCE))
        kind = torch.promote_types(loc.dtype, torch.float32)
        return TrainingStatistics.of(loc.to(kind, copy=True), variance.to(kind, copy=True))


def pixel_of(model: nn.Module) -> Statistics:
    """The pixel that passes through a normalized model: the statistics of its inputs."""
    (hook,) = (hook for hook in hooks_before(model).values() if isinstance(hook, _Refresh))
    return hook.pixel(model)


def _meets(args: Any) -> bool:
    return len(args) > 0 and isinstance(args[0], Statistics)


def _norms(model: nn.Module) -> list[AnalyticNorm]:
    return [module for module in model.modules() if isinstance(module, AnalyticNorm)]


def _settle(model: nn.Module, args: Any, output: Any) -> None:
    """A hook after a pass: keeps the statistics, since checkpointing runs modules again in the backward pass.

    A compiler does the checkpointing itself. There the statistics are dropped, so that they are not outputs of the
    graph.
    """
    for norm in _norms(model):
        norm.meeting = False
        if torch.compiler.is_compiling() and not _meets(args):
            norm.forget()


def _require_spread(model: nn.Module) -> None:
    """Raise an error if a channel to be normalized is constant or not finite."""
    with torch.no_grad(), suspended():
        model(pixel_of(model))
    for path, module in model.named_modules():
        if isinstance(module, AnalyticNorm) and module.normalizer is not None:
            variance = module.normalizer.variance
            unsound = ~(torch.isfinite(variance) & torch.isfinite(module.normalizer.mean) & (variance > 0))
            if bool(unsound.any()):
                raise UserError(
                    f"the inputs of {path!r} cannot be normalized: {named_channels(unsound)} constant or not finite"
                )


class Followers:
    """Finds, by a pass of one pixel, the normalization that directly follows each call of each layer."""

    def __init__(self, model: nn.Module, pixel: Statistics) -> None:
        self.calls: list[tuple[Any, Any, Any, int]] = []
        self.of_layers: dict[Any, list[nn.Module | None]] = {}
        self.norms: dict[nn.Module, list[int]] = {}  # with the number of dimensions of each of their inputs
        handles = [
            module.register_forward_hook(self._layer)
            if isinstance(module, LAYERS)
            else module.register_forward_pre_hook(self._norm)
            for module in model.modules()
            if isinstance(module, (*LAYERS, BatchNorm, AnalyticNorm))
        ]
        try:
            with torch.no_grad(), evaluating(model), suspended():
                model(pixel)
        finally:
            for handle in handles:
                handle.remove()

    def _layer(self, layer: nn.Module, _: Any, output: Any) -> None:
        calls = self.of_layers.setdefault(layer, [])
        self.calls.append((layer, output, output.loc, len(calls)))
        calls.append(None)

    def _norm(self, norm: nn.Module, args: Any) -> None:
        self.norms.setdefault(norm, []).append(args[0].ndim)
        for layer, output, loc, call in self.calls:
            if args[0] is output and output.loc is loc:  # an in-place operation makes new components
                self.of_layers[layer][call] = norm


def replaced(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Replace a module wherever it occurs; return the model, or `new` if the model itself is replaced."""
    paths = [path for path, module in model.named_modules(remove_duplicate=False) if path and module is old]
    for path in paths:
        model.set_submodule(path, new)
    return new if model is old else model
