"""How good class posteriors and intervals of logits are, on images whose class is known."""

import math
from typing import Any

import torch
from torch import Tensor

from momentprop import Normal
from momentprop_experiments.reproduction.outcome import rounded

LEVELS = (0.5, 0.9, 0.99)
"""Of the intervals of logits."""

KEPT = tuple(share / 20 for share in range(1, 21))
"""The shares of images that are kept when those of least confidence are rejected."""

BINS = 15
"""Of confidences, for the expected calibration error."""


def scores(log_q: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy, negative log-likelihood and expected calibration error, with the standard errors of the first two."""
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
    """The accuracy on the images that are kept, if only the shares `KEPT` of highest confidence are."""
    right = (log_q.argmax(-1) == labels)[log_q.amax(-1).argsort(descending=True)].double()
    return [rounded(float(right[: max(1, round(share * len(right)))].mean())) for share in KEPT]


def mean_of_softmax(draws: Tensor) -> Tensor:
    """The logarithm, without one of zero where the softmax underflows."""
    return draws.log_softmax(-1).logsumexp(0) - math.log(len(draws))


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """The average over images of |confidence - accuracy| in their bin of confidences, of which there are 15 alike."""
    bins = (confidence * BINS).long().clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64, device=bins.device)
    gaps.index_add_(0, bins, confidence.double() - right.double())
    return float(gaps.abs().sum() / len(right))


def coverage(logits: Normal | None, draws: Tensor) -> dict[str, float | None]:
    """How many of the draws lie in the intervals of the logits, by their level in per cent."""
    found = {}
    for level in LEVELS if logits is not None else ():
        assert logits is not None
        low, high = logits.interval(level)
        found[f"{100 * level:g}"] = rounded(float(((draws >= low) & (draws <= high)).double().mean()))
    return found
