r"""A sigmoid belief network that generates digits, with a network that infers its hidden units.

The model is $p(h_2)\, p(h_1 \mid h_2)\, p(x \mid h_1)$, all units logistic Bernoulli. The inference network gives
factorized $q(h_1 \mid x)\, q(h_2 \mid x)$. The bound $\log p(x) \ge E_q[\log p(x, h)] + H(q)$ needs the expectations
$E\,\mathrm{softplus}(a)$ of activations, which AP2 computes in one pass, and draws estimate.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop.functional.stochastic_units import Gradient
from momentprop.nn import LogisticBernoulli, ScoreFunction
from momentprop.values.moments import mean_of

PIXELS, LOWER, UPPER = 784, 64, 32


class DigitModel(nn.Module):
    """The generating and the inferring network; `forward` returns what the bound needs.

    Args:
        gradient: the gradient estimate for draws of the hidden units.
        draws: how often to draw the hidden units for each image.
    """

    def __init__(self, gradient: Gradient = "straight_through", draws: int = 1) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(PIXELS, 200), nn.Tanh())
        self.infer_lower, self.infer_upper = nn.Linear(200, LOWER), nn.Linear(200, UPPER)
        self.prior = nn.Parameter(torch.zeros(UPPER))
        self.generate_lower, self.generate_pixels = nn.Linear(UPPER, LOWER), nn.Linear(LOWER, PIXELS)
        self.unit = LogisticBernoulli(gradient=gradient)
        self.draws = draws

    def infer(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-odds of the hidden units given images."""
        features = self.trunk(x)
        return self.infer_lower(features), self.infer_upper(features)

    def forward(self, x: Any) -> Any:
        """Return log-odds, hidden units, activations, and the logarithms of the draws' probabilities."""
        odds = tuple(part.expand(self.draws, *part.shape) for part in self.infer(x))
        with ScoreFunction() as score:
            lower, upper = map(self.unit, odds)
        return odds, lower, upper, self.generate_lower(upper), self.generate_pixels(lower), score.log_probabilities


class Bound:
    """Minus the bound in nats for each image, as an objective of `fit`; the target is the image itself."""

    names: tuple[str, ...] = ("loss",)

    def __init__(self, model: DigitModel) -> None:
        self.model = model

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Return the losses, of shape (1, batch)."""
        odds, lower, upper, below, pixels, log_probabilities = output
        divergence = -sum(_entropy(mean_of(part)) for part in odds) - _log_likelihood(mean_of(upper), self.model.prior)
        losses = divergence - _log_likelihood(mean_of(lower), below) - _log_likelihood(target, pixels)
        score = ScoreFunction()
        score.log_probabilities = log_probabilities
        return score.surrogate(losses, _others(losses.detach())).mean(0, keepdim=True)

    def draw(self, output: Any) -> Any:
        """Return the output of a draw unchanged."""
        return output

    def of_draws(self, estimate: Any, target: Tensor) -> Tensor:
        """Return the losses of an average of draws, which this objective does not define."""
        raise NotImplementedError


def _others(losses: Tensor) -> Tensor:
    """Return the mean loss of the other draws of an image, a baseline that leaves the score function unbiased."""
    draws = len(losses)
    return (losses.sum(0) - losses) / (draws - 1) if draws > 1 else torch.zeros_like(losses)


def _log_likelihood(units: Tensor, activation: Any) -> Tensor:
    r"""Return $E[y a - \mathrm{softplus}(a)]$ of Bernoulli units that are independent of their activations."""
    return (units * mean_of(activation) - mean_of(F.softplus(activation))).sum(-1)  # type: ignore[no-any-return]


def _entropy(odds: Tensor) -> Tensor:
    p = torch.sigmoid(odds)
    return (F.softplus(odds) - p * odds).sum(-1)


@torch.no_grad()
def bounds(model: DigitModel, images: Tensor, draws: int, seed: int = 0) -> tuple[float, float]:
    r"""Return the bound, and the tighter importance-weighted one, in nats per image, from draws of the hidden units.

    The second is $E \log \frac1n \sum_i p(x, h_i) / q(h_i \mid x)$, which grows to $\log p(x)$ with the draws $n$.
    """
    generator = torch.Generator().manual_seed(seed)
    plain, weighted = [], []
    for x in images.split(20):
        odds = [part.expand(draws, *part.shape) for part in model.infer(x)]
        lower, upper = (torch.bernoulli(torch.sigmoid(part), generator=generator) for part in odds)
        weights = _log_likelihood(upper, model.prior) + _log_likelihood(lower, model.generate_lower(upper))
        weights = weights + _log_likelihood(x, model.generate_pixels(lower))
        weights = weights - _log_likelihood(lower, odds[0]) - _log_likelihood(upper, odds[1])
        plain.append(weights.mean(0))
        weighted.append(weights.logsumexp(0) - math.log(draws))
    return torch.cat(plain).mean().item(), torch.cat(weighted).mean().item()
