r"""Divergences of class posteriors from draws, with errors over many images, and how many draws they are worth.

A few images between two classes make most of a mean divergence. So it takes a thousand images, and an error estimate.
Draws come in two halves: finite draws add $B/n$ to a divergence, twice as much in a half, and the difference removes
it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import momentprop
from momentprop.checking.final_output import log_posteriors
from momentprop_experiments.reproduction.correlation.truths import Noisy, drawn
from momentprop_experiments.reproduction.outcome import rounded

_AT_ONCE = 500  # images in a pass


@dataclass(frozen=True)
class DrawnPosteriors:
    """The mean softmax of each half of the draws."""

    halves: Tensor  # shape: (2, images, classes), float64
    count: int  # of all draws

    @property
    def floor(self) -> Tensor:
        """The amount that finite draws add to the divergence of each image."""
        return _negative_entropy(self.halves).mean(0) - _negative_entropy(self.halves.mean(0))

    def divergence(self, log_q: Tensor) -> Tensor:
        r"""The divergence $\mathrm{KL}(p^*\,\|\,q)$ of each image in nats, without what finite draws add to it."""
        p = self.halves.mean(0)
        cross = torch.where(p > 0, p * log_q.to(p), 0.0).sum(-1)
        return _negative_entropy(p) - self.floor - cross

    def summary(self, log_q: Tensor) -> dict[str, float | None]:
        """Return the mean divergence and the draws with the same one, with standard errors over the images.

        `largest` is the share of the image with the largest divergence in the sum.
        """
        each, floor = self.divergence(log_q), self.count * self.floor
        kl, error = _mean(each)
        worth = float(floor.mean()) / kl if kl > 0 else math.inf
        _, off = _mean((floor - worth * each) / kl) if kl > 0 else (0.0, math.inf)
        known = kl > 2 * error  # otherwise the divergence may be zero, and the draws any number
        return {
            "kl": rounded(kl),
            "error": rounded(error, 2),
            "worth": rounded(worth) if known else None,
            "worth_error": rounded(off, 2) if known else None,
            "largest": rounded(float(each.max() / each.sum()), 2) if known else None,
        }


def draw_posteriors(noisy: Noisy, count: int, seed: int = 0) -> DrawnPosteriors:
    """Draw the class posteriors of all inputs, an even number of times."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        halves = torch.zeros(2, len(noisy.inputs), len(noisy.model(noisy.inputs[:1])[0]), dtype=torch.float64)
        done = torch.zeros(len(noisy.inputs), dtype=torch.long)
        for where, outputs in drawn(noisy, _AT_ONCE):
            for output in outputs[: count - int(done[where][0])]:
                halves[int(done[where][0]) % 2, where] += output.double().softmax(-1).cpu()
                done[where] += 1
            if done.min() == count:
                return DrawnPosteriors(halves / (count / 2), count)
    raise AssertionError("draws never end")


def measure(noisy: Noisy, methods: Mapping[str, Mapping[str, Any]], draws: int) -> dict[str, Any]:
    """Return the divergences of methods, given by options of `propagate`, by the kinds of their softmax."""
    truth = draw_posteriors(noisy, draws)
    found = {}
    for name, options in methods.items():
        parts: dict[str, list[Tensor]] = {}
        for some in noisy.inputs.split(_AT_ONCE):
            with torch.no_grad():
                value = momentprop.propagate(
                    noisy.model, some, input_variance=noisy.variance, dropout=noisy.dropout, **options
                )
            for kind, log_q in log_posteriors(value, -1, is_probability=False).items():
                parts.setdefault(kind, []).append(log_q)
        found[name] = {kind: truth.summary(torch.cat(each)) for kind, each in parts.items()}
    floor, error = _mean(truth.floor)
    return {
        "images": len(noisy.inputs),
        "draws": draws,
        "floor": {"kl": rounded(floor), "error": rounded(error, 2)},
        "methods": found,
    }


def _negative_entropy(p: Tensor) -> Tensor:
    return torch.xlogy(p, p).sum(-1)


def _mean(each: Tensor) -> tuple[float, float]:
    """Return the mean over the images and its standard error."""
    return float(each.mean()), float(each.std()) / math.sqrt(len(each))
