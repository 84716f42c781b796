"""Moments of weights along a training path: SWAG."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from momentprop.posteriors.flat import joints, normals
from momentprop.weights import with_weights


def from_swag(
    model: nn.Module,
    mean: Mapping[str, Tensor],
    second_moment: Mapping[str, Tensor],
    deviations: Mapping[str, Tensor] | None = None,
) -> nn.Module:
    r"""Return a model with the weights of SWAG: normal, with moments averaged over training steps.

    >>> import torch, momentprop
    >>> layer = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
    >>> steps = [torch.tensor([[w]]) for w in (0.9, 1.1)]
    >>> mean = {"weight": sum(steps) / 2}
    >>> second_moment = {"weight": sum(w * w for w in steps) / 2}
    >>> momentprop.posteriors.from_swag(layer, mean, second_moment).weight
    Normal(loc=tensor([[1.]]),
           variance=tensor([[0.0100]]))

    Args:
        model: the network; weights that are not named keep their values.
        mean: the average of each weight, by its name.
        second_moment: the average of its square.
        deviations: the last $K$ steps minus the mean, of shape (K, ...) for each weight. With them the weights follow
            the full method: half of the variance is diagonal, and half comes from the deviations,
            $\frac{1}{2(K-1)}\sum_k d_k d_k^\top$, with the covariance of all weights.
    """
    names = dict(model.named_parameters())
    for which, given in (("second_moment", second_moment), ("deviations", deviations)):
        if given is not None and given.keys() != mean.keys():
            raise ValueError(f"`mean` and `{which}` name different weights: {sorted(given.keys() ^ mean.keys())}")
    shapes = {name: x.shape for name, x in mean.items() if name in names}  # state dictionaries hold buffers too
    unknown = [name for name in mean if name not in names and name not in dict(model.named_buffers())]
    if unknown or not shapes:
        raise ValueError(
            f"the model has no parameters {unknown or sorted(mean)}: `mean` takes the names of `named_parameters()`"
        )
    loc = _flat(mean, shapes)
    square = loc.square()
    variance = _flat(second_moment, shapes) - square
    if bool((variance < -1e-3 * square - 1e-6).any()):  # beyond the rounding of averages
        raise ValueError(
            "`second_moment` must be the average of squares, but is below the square of `mean` somewhere: if it is a "
            "variance, add the square of `mean`"
        )
    variance = variance.clamp(min=0.0)
    if deviations is None:
        return with_weights(model, normals(shapes, loc, variance))
    steps = torch.cat([deviations[name].flatten(1) for name in shapes], 1)
    if len(steps) < 2:
        raise ValueError(f"a covariance takes at least 2 deviations, but there are {len(steps)}")
    return with_weights(model, joints(shapes, loc, variance / 2, steps / (2 * (len(steps) - 1)) ** 0.5))


def _flat(given: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> Tensor:
    return torch.cat([given[name].detach().flatten() for name in shapes])
