"""What `peers.py` compares: the library, packages that others wrote, and what a user would write by hand.

A contender is made from a model and inputs to fit to, and maps a batch of inputs to an `Answer`. Each input has the
variance `VARIANCE`. A package that is missing raises an `ImportError` when its contender is made.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop import Normal, propagate

VARIANCE = 0.25


LARGEST_BATCH = 8192
"""The most inputs in a batch of draws: more would not fit into the memory of a small machine."""


@dataclass(frozen=True)
class Answer:
    """Means of the outputs, and what else a contender knows; `posterior` only if it has draws."""

    loc: Tensor
    variance: Tensor | None = None
    covariance: Tensor | None = None
    posterior: Tensor | None = None


Solver = Callable[[Tensor], Answer]
Maker = Callable[[nn.Sequential, Tensor], Solver]


def ap1(model: nn.Sequential, _: Tensor) -> Solver:
    """AP1: the plain network at the mean."""
    return lambda x: Answer(model(momentprop.Mean(x)).loc)


def ap2(model: nn.Sequential, _: Tensor) -> Solver:
    """AP2 by the direct call."""

    def solve(x: Tensor) -> Answer:
        y = model(Normal(x, torch.full_like(x, VARIANCE)))
        return Answer(y.loc, y.variance)

    return solve


def calibrated(model: nn.Sequential, fit: Tensor) -> Solver:
    """AP2 with corrections that were fitted to draws beforehand."""
    run = momentprop.calibrated(model, momentprop.calibrate(model, fit, input_variance=VARIANCE))

    def solve(x: Tensor) -> Answer:
        y = run(x)
        return Answer(y.loc, y.variance)

    return solve


def joint(model: nn.Sequential, _: Tensor) -> Solver:
    """`propagate` as it is by default: correlations are followed to the outputs."""

    def solve(x: Tensor) -> Answer:
        y = propagate(model, x, input_variance=VARIANCE)
        return Answer(y.loc, y.variance, y.covariance)

    return solve


def draws(count: int) -> Maker:
    """Draws by hand, in one batch, or in few."""

    def make(model: nn.Sequential, _: Tensor) -> Solver:
        def solve(x: Tensor) -> Answer:
            pieces = x.repeat(count, *[1] * (x.ndim - 1)).split(LARGEST_BATCH)
            found = [model(noisy + VARIANCE**0.5 * torch.randn_like(noisy)) for noisy in pieces]
            y = torch.cat(found).unflatten(0, (count, len(x)))
            loc = y.mean(0)
            covariance = _outer(y - loc, torch.full((count,), 1 / (count - 1)))
            return Answer(loc, covariance.diagonal(dim1=-2, dim2=-1), covariance, y.softmax(-1).mean(0))

        return solve

    return make


def unscented(model: nn.Sequential, _: Tensor) -> Solver:
    """The unscented transform: two points for each feature, at the root of their number times the deviation."""

    def solve(x: Tensor) -> Answer:
        features = x[0].numel()
        step = math.sqrt(features * VARIANCE) * torch.eye(features).view(features, 1, *x.shape[1:])
        pieces = [model((x[i : i + 1] + torch.cat([step, -step])).flatten(0, 1)) for i in range(len(x))]
        y = torch.stack(pieces, 1)  # shape: (points, batch, outputs)
        loc = y.mean(0)
        covariance = _outer(y - loc, torch.full((2 * features,), 1 / (2 * features)))
        return Answer(loc, covariance.diagonal(dim1=-2, dim2=-1), covariance)

    return solve


def jacobian(model: nn.Sequential, _: Tensor) -> Solver:
    """The delta method by `torch.func.jacrev`."""

    def single(x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x[None])[0]
        return y, y

    slopes = torch.func.vmap(torch.func.jacrev(single, has_aux=True))

    def solve(x: Tensor) -> Answer:
        slope, loc = slopes(x)
        slope = slope.flatten(2)
        covariance = VARIANCE * slope @ slope.mT
        return Answer(loc, covariance.diagonal(dim1=-2, dim2=-1), covariance)

    return solve


def torch_adf(mode: str) -> Maker:
    """The package torch-adf, which has its own layers: the weights are copied into them."""

    def make(model: nn.Sequential, _: Tensor) -> Solver:
        from torchadf import nn as layers

        if mode == "full" and any(isinstance(layer, nn.Conv2d) for layer in model):
            raise ValueError("the covariance of all units takes 85 MB an item here")
        network = layers.Sequential(*(_adf_layer(layers, layer, mode) for layer in model)).requires_grad_(False)

        def solve(x: Tensor) -> Answer:
            given = torch.full_like(x, VARIANCE)
            loc, found = network(x, torch.diag_embed(given) if mode == "full" else given)
            return Answer(loc, found.diagonal(dim1=-2, dim2=-1), found) if mode == "full" else Answer(loc, found)

        return solve

    return make


def _adf_layer(layers: Any, layer: nn.Module, mode: str) -> nn.Module:
    if isinstance(layer, nn.Linear):
        made = layers.Linear(layer.in_features, layer.out_features, mode=mode)
    elif isinstance(layer, nn.Conv2d):
        made = layers.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, mode=mode)
    else:
        return getattr(layers, type(layer).__name__)(mode=mode)  # type: ignore[no-any-return]
    made.load_state_dict(layer.state_dict())
    return made  # type: ignore[no-any-return]


def distprop(model: nn.Sequential, _: Tensor) -> Solver:
    """The package distprop: the plain network at the mean, and its Jacobian."""
    from distprop import SDP

    network = SDP(model, std=VARIANCE**0.5, num_outputs=10, create_graph=False)

    def solve(x: Tensor) -> Answer:
        with torch.enable_grad():
            loc, covariance = network(x.clone())
        covariance = covariance.detach()
        return Answer(loc.detach(), covariance.diagonal(dim1=-2, dim2=-1), covariance)

    return solve


def pytagi(model: nn.Sequential, _: Tensor) -> Solver:
    """The package pytagi, in C++, with its moments of the ReLU (`MixtureReLU`) and certain weights.

    Each batch size has its own network: a network that gets a larger batch writes beyond its memory.
    """
    from pytagi import nn as layers

    if not all(isinstance(layer, nn.Linear | nn.ReLU) for layer in model):
        raise ValueError("compared on linear layers and ReLU only")
    networks: dict[int, Any] = {}

    def solve(x: Tensor) -> Answer:
        if len(x) not in networks:
            networks[len(x)] = _tagi_network(layers, model)
        loc, variance = networks[len(x)](x.numpy().ravel(), torch.full_like(x, VARIANCE).numpy().ravel())
        shape = (-1, 10)
        return Answer(torch.tensor(loc).view(shape)[: len(x)], torch.tensor(variance).view(shape)[: len(x)])

    return solve


def _tagi_network(layers: Any, model: nn.Sequential) -> Any:
    network = layers.Sequential(
        *(
            layers.Linear(layer.in_features, layer.out_features)
            if isinstance(layer, nn.Linear)
            else layers.MixtureReLU()
            for layer in model
        )
    )
    network.preinit_layer()
    network.load_state_dict({key: _tagi_parameters(model, key) for key in network.state_dict()})
    network.eval()
    return network


def _tagi_parameters(model: nn.Sequential, key: str) -> tuple[list[float], ...]:
    layer = model[int(key.split(".")[1])]
    weight, bias = layer.weight.flatten(), layer.bias
    return tuple(part.tolist() for part in (weight, 0 * weight, bias, 0 * bias))  # type: ignore[operator]


class Shifted(nn.Module):
    """A model whose input has a shift: a random shift is a noisy input."""

    def __init__(self, model: nn.Module, shape: torch.Size) -> None:
        super().__init__()
        self.model, self.shift = model, nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Run the model on the shifted input."""
        return self.model(x + self.shift)  # type: ignore[no-any-return]


def laplace(model: nn.Sequential, fit: Tensor) -> Solver:
    """The package laplace-torch, where a shift of the input is the only random parameter.

    Its memory grows with the square of the batch, which is therefore cut into pieces.
    """
    from laplace import DiagLaplace
    from laplace.curvature.curvlinops import CurvlinopsGGN

    found = DiagLaplace(
        Shifted(model, fit.shape[1:]), "classification", prior_precision=1 / VARIANCE, backend=CurvlinopsGGN
    )
    found._init_H()
    found.mean = torch.zeros(fit[0].numel())

    def solve(x: Tensor) -> Answer:
        with torch.enable_grad():
            pieces = [found._glm_predictive_distribution(piece) for piece in x.split(16)]
        loc, covariance = (torch.cat(parts).detach() for parts in zip(*pieces, strict=True))
        return Answer(loc, covariance.diagonal(dim1=-2, dim2=-1), covariance)

    return solve


def _outer(apart: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of outer products; the draws come first."""
    return torch.einsum("n,nbi,nbj->bij", weights, apart, apart)


CONTENDERS: dict[str, Maker] = {
    "momentprop AP1": ap1,
    "momentprop AP2": ap2,
    "momentprop calibrated": calibrated,
    "momentprop joint": joint,
    **{f"{count} draws": draws(count) for count in (10, 30, 100, 1000)},
    "Jacobian": jacobian,
    "unscented": unscented,
    "torch-adf diagonal": torch_adf("diag"),
    "torch-adf full": torch_adf("full"),
    "distprop": distprop,
    "pytagi": pytagi,
    "laplace-torch": laplace,
}
"""The contenders by name."""
