"""Folds analytic normalization into the weights, which gives a plain network for inference."""

import copy
from typing import Any

import torch
from torch import nn

from momentprop.dispatch.context import suspended
from momentprop.errors import UserError
from momentprop.nn.analytic_norm import AnalyticNorm, Normalizer
from momentprop.normalization.initialization import per_output
from momentprop.normalization.layers import LOC, VARIANCE, Followers, Normalized, detach, pixel_of, replaced
from momentprop.torch_compat import pytrees as pytree

_BATCH_NORMS: dict[int, type[nn.Module]] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    r"""A plain copy of a normalized model, in evaluation mode, with the same outputs.

    The statistics of the current weights are folded into the layer before each `AnalyticNorm`, which gets its bias
    back. Without such a layer, a batch normalization with fixed statistics replaces the `AnalyticNorm`.

    >>> import torch, momentprop
    >>> statistics = momentprop.Statistics(torch.zeros(2), torch.ones(2))
    >>> model = momentprop.normalize(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), statistics)
    >>> momentprop.fold(model)
    Sequential(
      (0): Linear(in_features=2, out_features=2, bias=True)
      (1): ReLU()
    )

    Args:
        model: a model made by `momentprop.normalize`, trained or not.
    """
    if not hasattr(model, LOC):
        raise UserError("there is nothing to fold: the model was not made by `momentprop.normalize`")
    model = copy.deepcopy(model).eval()
    pixel = pixel_of(model)
    followers = Followers(model, pixel)
    with suspended():
        before = model(pixel)
    detach(model)
    for name in (LOC, VARIANCE):
        delattr(model, name)
    for norm, inputs in followers.norms.items():
        if isinstance(norm, AnalyticNorm):
            model = _folded(model, norm, inputs, followers)
    with suspended():
        _require_same(before, model(pixel))
    return model


def _folded(model: nn.Module, norm: AnalyticNorm, dims: list[int], followers: Followers) -> nn.Module:
    """The model with one normalization folded away."""
    assert norm.normalizer is not None
    layers = [layer for layer, found in followers.of_layers.items() if norm in found]
    calls = followers.of_layers[layers[0]] if layers else []
    if len(layers) != 1 or calls != [norm] * len(dims):
        return replaced(model, norm, _batch_norm(norm, norm.normalizer, dims[0]))
    layer, (_, _, scale, shift) = layers[0], norm.normalizer
    shift = shift if layer.bias is None else shift + layer.bias * scale
    layer.weight.mul_(per_output(layer, scale))
    layer.bias = nn.Parameter(shift.to(layer.weight.dtype))
    for module in model.modules():
        if isinstance(module, Normalized) and module.norm is norm:
            return replaced(model, module, layer)
    return replaced(model, norm, nn.Identity())


def _batch_norm(norm: AnalyticNorm, normalizer: Normalizer, dims: int) -> nn.Module:
    """A batch normalization with the current statistics of an analytic one."""
    if dims not in _BATCH_NORMS or (norm.dim != 1 and dims > 2):
        raise UserError(
            "a normalization of the last of several dimensions can only be folded into the layer before it, and here "
            "no layer feeds it alone: use the model as it is"
        )
    made: Any = _BATCH_NORMS[dims](norm.channels, eps=norm.eps).to(normalizer.scale.device, normalizer.scale.dtype)
    made.running_mean.copy_(normalizer.mean)
    made.running_var.copy_(normalizer.variance)
    if norm.weight is not None and norm.bias is not None:
        made.weight.copy_(norm.weight)
        made.bias.copy_(norm.bias)
    return made.eval()  # type: ignore[no-any-return]


def _require_same(before: Any, after: Any) -> None:
    """Compare the statistics of the outputs: they differ if something else has used the outputs of a layer."""
    pairs = list(zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True))
    largest = max(float(old.abs().max()) for old, _ in pairs)
    if not all(torch.allclose(old, new, rtol=1e-3, atol=1e-3 * largest) for old, new in pairs):
        raise UserError(
            "the model cannot be folded, because it also uses the outputs of a layer before they are normalized: use "
            "the model as it is"
        )
