"""Training of deep networks of logistic Bernoulli units on the embedded digits, by every method."""

from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import momentprop
from momentprop.data.embedded import digits
from momentprop.functional import class_posterior
from momentprop.nn import LogisticBernoulli
from momentprop.sampling import progress
from momentprop.training import Settings, fit
from momentprop_experiments.reproduction.gradients.deep_gradients import STRAIGHT, centred

TRAINED_BY = {
    "AP1": ("ap1", 1),
    "AP2": ("ap2", 1),
    STRAIGHT: ("sample", 1),
    f"{STRAIGHT}, 2 × as long": ("sample", 2),
}
"""The method of `fit`, and the factor on its epochs, with which the last takes about as much time as AP2."""

WIDTH, GAIN = 64, 4.0
DRAWS = 100

Examples = tuple[Tensor, Tensor]


def deep_network(depth: int, seed: int) -> nn.Sequential:
    """Build a classifier with this number of layers of Bernoulli units, for images of 14 by 14."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        maps = [nn.Linear(*pair) for pair in pairwise([196, *[WIDTH] * depth])]
        for map in maps[1:]:
            centred(map, GAIN)
        units = [layer for map in maps for layer in (map, LogisticBernoulli())]
        return nn.Sequential(*units, nn.Linear(WIDTH, 10))


def trained(depths: tuple[int, ...], seeds: int, epochs: int, images: int | None = None) -> list[dict[str, Any]]:
    """Train networks of every depth by every method, and measure each twice (see `accuracies`)."""
    examples = {split: _examples(split, images) for split in ("train", "test")}
    rows = []
    with progress(len(depths) * len(TRAINED_BY) * seeds, "training") as bar:
        for depth, (name, (method, times)), seed in product(depths, TRAINED_BY.items(), range(seeds)):
            model = deep_network(depth, seed)
            settings = Settings(
                method=method,
                epochs=times * epochs,
                decay=0.96 ** (1 / times),
                batch_size=100,
                learning_rate=3e-3,
                seed=seed,
                device="cpu",
            )
            history = fit(model, examples["train"], settings, progress=False)
            figures = accuracies(model.eval(), method, *examples["test"], seed)
            rows.append(
                {"depth": depth, "method": name, "seed": seed, "train_loss": history[-1]["train_loss"], **figures}
            )
            bar.update(1)
    return rows


@torch.no_grad()
def accuracies(model: nn.Module, method: str, images: Tensor, labels: Tensor, seed: int) -> dict[str, float]:
    """Return the test accuracy of the method's predictions, and of the network of random units itself.

    The method that samples in training predicts by AP1; the network itself by the average of many draws.
    """
    given = "ap1" if method == "sample" else method
    told = momentprop.propagate(model, images, method=given, covariance=False)  # type: ignore[arg-type]
    posterior = class_posterior(told, -1, "simplified").logits
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.train()
        drawn = torch.stack([torch.softmax(model(images), -1) for _ in range(DRAWS)]).mean(0)
        model.eval()
    return {"own": _accuracy(posterior, labels), "sampled": _accuracy(drawn, labels)}


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return round((scores.argmax(-1) == labels).double().mean().item(), 4)


def _examples(split: str, images: int | None) -> Examples:
    """Return the digits, averaged over two by two pixels."""
    found = digits(split)
    return F.avg_pool2d(found.images, 2).flatten(1)[:images], found.labels[:images]
