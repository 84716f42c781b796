"""Scores of class posteriors against plain sums."""

import math

import pytest
import torch

from momentprop_experiments.reproduction import posterior_scores
from momentprop_experiments.reproduction.posterior_scores import KEPT, mean_of_softmax, rejection


def test_the_scores_are_those_of_a_plain_sum():
    q = torch.tensor([[0.7, 0.3], [0.7, 0.3], [0.7, 0.3], [0.05, 0.95]])
    labels = torch.tensor([0, 1, 0, 1])
    found = posterior_scores.scores(q.log(), labels)
    assert found["accuracy"] == 0.75
    assert found["nll"] == pytest.approx(-sum(map(math.log, (0.7, 0.3, 0.7, 0.95))) / 4, rel=1e-3)
    assert found["ece"] == pytest.approx((3 * abs(0.7 - 2 / 3) + 0.05) / 4, rel=1e-3)


def test_rejection_keeps_the_surest_answers():
    confidence = torch.linspace(0.51, 0.99, 40)
    log_q = torch.stack([confidence, 1 - confidence], -1).log()
    labels = (torch.arange(40) < 10).long()  # the ten least sure answers are wrong
    kept = dict(zip(KEPT, rejection(log_q, labels), strict=True))
    assert kept[0.5] == kept[0.75] == 1
    assert kept[1.0] == 0.75
    assert kept[0.8] == pytest.approx(30 / 32, abs=1e-3)


def test_the_mean_of_softmax_survives_underflow():
    draws = torch.tensor([[[0.0, -300.0]], [[0.0, -301.0]]])
    expected = -300 + math.log((1 + math.exp(-1)) / 2)
    torch.testing.assert_close(mean_of_softmax(draws), torch.tensor([[0.0, expected]]))
