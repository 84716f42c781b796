r"""The gradients of a deep network of logistic Bernoulli units, layer by layer, by every method.

The weights of a layer are drawn from $N(0, g^2/n)$ with the gain $g$, and its biases are $-\tfrac12\sum_i w_{ji}$, so a
unit is undecided when half of its inputs are one. The loss is a random sum of the last layer's expectations.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from momentprop import Normal
from momentprop.belief import BeliefNetwork
from momentprop.functional import logistic_bernoulli
from momentprop.nn import LogisticBernoulli, ScoreFunction

EXACT, STRAIGHT, SCORE = "exact", "straight-through", "score function"
METHODS = (EXACT, "AP1", "AP2", STRAIGHT, SCORE)


def draw_maps(width: int, depth: int, gain: float) -> list[nn.Linear]:
    """Draw the affine maps of a network."""
    maps = [nn.Linear(width, width, dtype=torch.float64) for _ in range(depth)]
    for map in maps:
        centred(map, gain)
    return maps


@torch.no_grad()
def centred(map: nn.Linear, gain: float) -> None:
    """Draw the weights of a map, and set its biases so that its units are undecided on average."""
    nn.init.normal_(map.weight, std=gain / math.sqrt(map.in_features))
    map.bias.copy_(-map.weight.sum(1) / 2)


def gradients(maps: Sequence[nn.Linear], x: Tensor, direction: Tensor, method: str, draws: int) -> list[Tensor]:
    """Return the gradient of the loss in the weights of every layer.

    The sampling methods average over `draws`: the straight-through gradient uses a unit's expectation, and the score
    function uses the mean loss as its baseline.
    """
    network = _network(maps, "score" if method == SCORE else "straight_through")
    if method == EXACT:
        loss = network.exact(x)[-1].marginals @ direction
    elif method in ("AP1", "AP2"):
        loss = network.propagate(x, "ap1" if method == "AP1" else "ap2")[-1].loc @ direction
    else:
        loss = _drawn(network, x.expand(draws, -1), direction, method)
    return list(torch.autograd.grad(loss, [map.weight for map in maps]))


def _network(maps: Sequence[nn.Linear], gradient: str) -> BeliefNetwork:
    return BeliefNetwork(*(nn.Sequential(map, LogisticBernoulli(gradient=gradient)) for map in maps))  # type: ignore[arg-type]


def _drawn(network: BeliefNetwork, x: Tensor, direction: Tensor, method: str) -> Tensor:
    """Return the mean loss of draws, with the gradient of an estimator."""
    if method == STRAIGHT:
        return (network(x) @ direction).mean()  # type: ignore[no-any-return]
    with ScoreFunction() as score:
        losses = network(x) @ direction
    return score.surrogate(losses, baseline=losses.mean().detach()).mean()


def by_layer(width: int, depth: int, gain: float, methods: Sequence[str], draws: int) -> tuple[Tensor, Tensor]:
    """Return the norms of a random network's gradients, and their cosines with those of the first method.

    Both have the shape (methods, layers).
    """
    maps = draw_maps(width, depth, gain)
    x = torch.bernoulli(torch.full((width,), 0.5, dtype=torch.float64))
    direction = torch.randn(width, dtype=x.dtype) / math.sqrt(width)
    found = [[g.flatten() for g in gradients(maps, x, direction, method, draws)] for method in methods]
    norms = torch.stack([torch.stack([g.norm() for g in each]) for each in found])
    cosines = torch.stack(
        [torch.stack([torch.cosine_similarity(g, h, 0) for g, h in zip(each, found[0], strict=True)]) for each in found]
    )
    return norms, cosines


def expected_decay(gain: float, method: str) -> float:
    r"""Return the factor by which, in theory, the gradient of a wide network shrinks per layer at undecided units.

    A unit's expectation has the slope $\tfrac14$ by AP1, and $E\,S'(X)$ by AP2, with $X$ of the variance $g^2/4$ of its
    activation; the factor is $g$ times the slope. By AP2 it is below $\sqrt{2/\pi} = 0.8$ for all gains.

    >>> round(expected_decay(4.0, "AP1"), 3), round(expected_decay(1e4, "AP2"), 3)
    (1.0, 0.798)
    """
    if method == "AP1":
        return gain / 4
    mean = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    unit = logistic_bernoulli(Normal(mean, torch.full_like(mean, gain**2 / 4)))
    (slope,) = torch.autograd.grad(unit.loc, mean)
    return gain * slope.item()
