"""What `weights.py` compares: trained classifiers with a posterior over their weights, and ways to predict with it."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from momentprop import Joint, propagate, with_weights
from momentprop.kernels.joint_posterior import posterior

DRAWS = 500
"""The number of draws that estimate the mean entropy of normal logits."""

POINTS = 4096
"""The points of the class probabilities: an error of at most 2e-4 in KL divergence."""

PRECISIONS = (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)
"""The prior precisions to choose from, by the likelihood of held-out images under draws."""


class Answer:
    """Moments of the logits, and what they say about the classes; given as logits, or as what draws counted."""

    def __init__(self, logits: Joint | None = None, **counted: Tensor) -> None:
        self.logits = logits
        self.__dict__.update(counted)

    @functools.cached_property
    def loc(self) -> Tensor:
        """The means of the logits."""
        assert self.logits is not None
        return self.logits.loc

    @functools.cached_property
    def variance(self) -> Tensor:
        """The variances of the logits."""
        assert self.logits is not None
        return self.logits.variance

    @functools.cached_property
    def probabilities(self) -> Tensor:
        """The class probabilities."""
        assert self.logits is not None
        return posterior(self.logits.loc, self.logits.covariance, points=POINTS)

    @functools.cached_property
    def entropy_given(self) -> Tensor:
        """The mean entropy given the weights, over fixed draws of the logits."""
        assert self.logits is not None
        y = self.logits
        noise = torch.randn(DRAWS, y.shape[1], generator=torch.Generator().manual_seed(1))
        values, vectors = torch.linalg.eigh(y.covariance)
        root = vectors * values.clamp(min=0.0).sqrt()[:, None]
        return entropy((y.loc + torch.einsum("bij,nj->nbi", root, noise)).softmax(-1)).mean(0)

    @property
    def information(self) -> Tensor:
        """The mutual information of class and weights: the part of the entropy due to the weights' noise."""
        return entropy(self.probabilities) - self.entropy_given


@dataclass(frozen=True)
class Posterior:
    """A trained network, and the variances of its weights by name."""

    model: nn.Sequential
    variances: dict[str, Tensor]
    precision: float = math.nan  # of the prior


Solver = Callable[[Tensor], Answer]


def perceptron() -> nn.Sequential:
    """Return a perceptron of three layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def convolutional() -> nn.Sequential:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(400, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip


def trained(make: Callable[[], nn.Sequential], images: Tensor, labels: Tensor, epochs: int) -> nn.Sequential:
    """Return a network trained by Adam, the same for the same arguments."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(50):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval().requires_grad_(False)


def curvature(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    r"""Return the diagonal of the Fisher information, which is that of the generalized Gauss-Newton matrix.

    It is the sum over images of $\sum_c p_c (\partial \log p_c)^2$.
    """
    weights = dict(model.named_parameters())

    def log_probability(weights: dict[str, Tensor], x: Tensor, label: Tensor) -> Any:
        return functional_call(model, weights, (x[None],))[0].log_softmax(-1) @ label

    gradients = vmap(vmap(grad(log_probability), (None, None, 0)), (None, 0, None))
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for some in images.split(16):
        p = model(some).softmax(-1)
        for name, each in gradients(weights, some, torch.eye(p.shape[1])).items():
            total[name] += torch.einsum("bc,bc...->...", p, each.square())
    return total


def laplace_posterior(model: nn.Sequential, images: Tensor, precision: float) -> Posterior:
    """Return the diagonal Laplace posterior."""
    variances = {name: 1 / (each + precision) for name, each in curvature(model, images).items()}
    return Posterior(model, variances, precision)


def best_posterior(
    model: nn.Sequential, images: Tensor, held_out: tuple[Tensor, Tensor], may_end: bool = False
) -> Posterior:
    """Return the posterior with the prior precision that draws find best on held-out images.

    A choice at an end of the list says nothing about what lies beyond, and is refused unless it `may_end` there.
    """
    fisher, found = curvature(model, images), []
    for precision in PRECISIONS:
        variances = {name: 1 / (each + precision) for name, each in fisher.items()}
        p = draws(100, Posterior(model, variances, precision))(held_out[0]).probabilities
        found.append((float(F.nll_loss(p.clamp(min=1e-30).log(), held_out[1])), precision, variances))
    _, precision, variances = min(found, key=lambda each: each[0])
    if precision in (PRECISIONS[0], PRECISIONS[-1]) and not may_end:
        raise RuntimeError(f"the best prior precision, {precision:g}, is an end of `PRECISIONS`: make the list longer")
    return Posterior(model, variances, precision)


def plain(found: Posterior) -> Solver:
    """The plain network and its softmax."""

    def solve(x: Tensor) -> Answer:
        p = found.model(x).softmax(-1)
        return Answer(probabilities=p, entropy_given=entropy(p))

    return solve


def momentprop(found: Posterior, **options: Any) -> Solver:
    """This library."""
    model = with_weights(found.model, found.variances)

    def solve(x: Tensor) -> Answer:
        y = propagate(model, x, **options)
        return Answer(y if isinstance(y, Joint) else Joint(y.loc, y.variance))

    return solve


def draws(count: int, found: Posterior, seed: int = 0) -> Solver:
    """Draws by hand: each draws all weights once, for the whole batch."""
    weights = dict(found.model.named_parameters())
    deviations = {name: variance.sqrt() for name, variance in found.variances.items()}

    def solve(x: Tensor) -> Answer:
        generator = torch.Generator().manual_seed(seed)
        sums: list[Any] = [0.0, 0.0, 0.0, 0.0]
        centre = found.model(x)
        for _ in range(count):
            drawn = {
                name: weight + deviations[name] * torch.randn(weight.shape, generator=generator)
                for name, weight in weights.items()
            }
            logits = functional_call(found.model, drawn, (x,))
            p = logits.softmax(-1)
            apart = (logits - centre).double()
            parts = p.double(), entropy(p).double(), apart, apart.square()
            sums = [total + part for total, part in zip(sums, parts, strict=True)]
        p, given, mean, square = (total / count for total in sums)
        variance = square - mean.square()
        counted = {"probabilities": p, "entropy_given": given, "loc": centre + mean, "variance": variance}
        return Answer(**{name: each.float() for name, each in counted.items()})

    return solve


def laplace_torch(found: Posterior) -> Solver:
    """The package laplace-torch with the same posterior: the linearized network, in pieces of the batch."""
    from laplace import DiagLaplace
    from laplace.curvature.curvlinops import CurvlinopsGGN

    model = found.model.requires_grad_(True)
    package = DiagLaplace(model, "classification", prior_precision=1.0, backend=CurvlinopsGGN)
    package.H = torch.cat([1 / found.variances[name].flatten() for name, _ in model.named_parameters()]) - 1.0
    package.mean = torch.cat([weight.detach().flatten() for weight in model.parameters()])

    def solve(x: Tensor) -> Answer:
        with torch.enable_grad():
            pieces = [package._glm_predictive_distribution(piece) for piece in x.split(16)]
        loc, covariance = (torch.cat(parts).detach() for parts in zip(*pieces, strict=True))
        return Answer(Joint.from_covariance(loc, (covariance + covariance.mT) / 2, validate_args=False))

    return solve


def entropy(p: Tensor) -> Tensor:
    """Return the entropy of class probabilities."""
    return -torch.special.xlogy(p, p).sum(-1)


CONTENDERS: dict[str, Callable[[Posterior], Solver]] = {
    "softmax": plain,
    "AP2": functools.partial(momentprop, covariance=False),
    "joint": momentprop,
    "joint, 16 probes": functools.partial(momentprop, probes=16),
    "delta method": functools.partial(momentprop, method="linear"),
    "laplace-torch": laplace_torch,
    "30 draws": functools.partial(draws, 30),
    "100 draws": functools.partial(draws, 100),
}
"""The contenders by name."""
