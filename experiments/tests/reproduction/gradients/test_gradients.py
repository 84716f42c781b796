"""Gradients of deep Bernoulli networks against differences and theory."""

import pytest
import torch

from momentprop_experiments.reproduction.gradients import deep_gradients as deep
from momentprop_experiments.reproduction.gradients.deep_training import TRAINED_BY


def test_the_exact_gradient_is_that_of_differences():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        maps = deep.draw_maps(3, 2, 4.0)
        x, direction = torch.tensor([1.0, 0.0, 1.0]).double(), torch.randn(3).double()
    found = deep.gradients(maps, x, direction, deep.EXACT, 1)[0][1, 2]

    def loss(step):
        with torch.no_grad():
            maps[0].weight[1, 2] += step
            value = deep._network(maps, "score").exact(x)[-1].marginals @ direction
            maps[0].weight[1, 2] -= step
        return value

    assert found.item() == pytest.approx(((loss(1e-5) - loss(-1e-5)) / 2e-5).item(), rel=1e-6)


def test_the_score_function_agrees_with_the_exact_gradient_within_its_noise():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        maps = deep.draw_maps(3, 2, 4.0)
        x, direction = torch.tensor([1.0, 0.0, 1.0]).double(), torch.randn(3).double()
        exact = deep.gradients(maps, x, direction, deep.EXACT, 1)[0]
        trials = torch.stack([deep.gradients(maps, x, direction, deep.SCORE, 2000)[0] for _ in range(20)])
    z = (trials.mean(0) - exact) / (trials.std(0) / 20**0.5 + 1e-12)
    assert z[:, [0, 2]].abs().max() < 6  # the second input is zero, and so is its gradient


@pytest.mark.parametrize("method", ["AP1", "AP2"])
def test_the_gradient_of_a_wide_network_decays_as_theory_says(method):
    gain = 2.0
    with torch.random.fork_rng():
        torch.manual_seed(0)
        norms = torch.stack([deep.by_layer(300, 8, gain, (method,), 1)[0][0] for _ in range(5)])
    decay = (norms[:, 2] / norms[:, 6]).log().mean().div(4).exp().item()
    assert decay == pytest.approx(deep.expected_decay(gain, method), rel=0.06)


def test_the_report_has_every_case(data):
    found = data("gradient-depth")
    assert {(case["kind"], case["gain"]) for case in found["cases"]} == {
        (kind, gain) for kind in ("narrow", "wide") for gain in (2.0, 4.0, 16.0, 64.0)
    }
    assert {row["method"] for row in found["training"]} == set(TRAINED_BY)
