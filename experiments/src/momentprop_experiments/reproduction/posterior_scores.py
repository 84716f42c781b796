"""Scores of class posteriors and of intervals of logits, on images with known classes."""

import math
from typing import Any

import torch
from torch import Tensor

from momentprop import Normal
from momentprop_experiments.reproduction.outcome import rounded

LEVELS = (0.5, 0.9, 0.99)
"""The levels of the intervals of logits."""

KEPT = tuple(share / 20 for share in range(1, 21))
"""The shares of images to keep when the least confident ones are rejected."""

BINS = 15
"""The number of bins of the expected calibration error."""


def scores(log_q: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return accuracy, negative log-likelihood (both with standard errors) and expected calibration error."""
    right = log_q.argmax(-1) == labels
    losses = -log_q.gather(-1, labels[:, None])[:, 0].double()
    count = len(labels)
    return {
        "accuracy": rounded(float(right.double().mean())),
        "accuracy_error": rounded(float(right.double().std()) / count**0.5, 2),
        "nll": rounded(float(losses.mean())),
        "nll_error": rounded(float(losses.std()) / count**0.5, 2),
        "ece": rounded(calibration_error(log_q.exp().amax(-1), right)),
    }


def rejection(log_q: Tensor, labels: Tensor) -> list[float | None]:
    """Return the accuracy on the most confident images, for each share in `KEPT`."""
    right = (log_q.argmax(-1) == labels)[log_q.amax(-1).argsort(descending=True)].double()
    return [rounded(float(right[: max(1, round(share * len(right)))].mean())) for share in KEPT]


def mean_of_softmax(draws: Tensor) -> Tensor:
    """Return the logarithm of the mean softmax of draws; it stays finite where the softmax underflows."""
    return draws.log_softmax(-1).logsumexp(0) - math.log(len(draws))


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """Return the average over images of |confidence - accuracy| in their bin, of 15 equal bins of confidence."""
    bins = (confidence * BINS).long().clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64, device=bins.device)
    gaps.index_add_(0, bins, confidence.double() - right.double())
    return float(gaps.abs().sum() / len(right))


def coverage(logits: Normal | None, draws: Tensor) -> dict[str, float | None]:
    """Return the share of the draws inside the intervals of the logits, by level in per cent."""
    found = {}
    for level in LEVELS if logits is not None else ():
        assert logits is not None
        low, high = logits.interval(level)
        found[f"{100 * level:g}"] = rounded(float(((draws >= low) & (draws <= high)).double().mean()))
    return found
