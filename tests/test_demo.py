"""The demo runs, and shows what it promises."""

import pytest
import torch

from momentprop import demo


@pytest.fixture(scope="module")
def summary():
    (summary,) = demo.main((0.1,), epochs=2, images=30, draws=1000, shown=2)
    return summary


def test_ap2_estimates_the_means_better_than_ap1(summary):
    assert summary.ap2_mean_error < 0.5 * summary.ap1_mean_error


def test_ap2_estimates_the_class_probabilities_better_than_ap1(summary):
    assert 0 <= summary.ap2_divergence < 0.8 * summary.ap1_divergence


def test_ap2_underestimates_the_deviations_of_a_trained_network_as_the_demo_says(summary):
    assert 0.3 < summary.ap2_stddev_factor < 0.9


def test_ap2_estimates_the_deviations_of_an_untrained_network_well():
    (summary,) = demo.main((0.1,), epochs=0, images=30, draws=1000, shown=0)
    assert summary.ap2_stddev_factor == pytest.approx(1, abs=0.05)


def test_the_demo_prints_a_table_with_a_row_for_each_image_shown(capsys):
    demo.main((0.1,), epochs=1, images=4, draws=10, shown=3)
    printed = capsys.readouterr().out
    assert "AP1     AP2      MC" in printed
    assert sum(line.count("|") == 3 and line.lstrip()[:1].isdigit() for line in printed.splitlines()) == 3


def test_monte_carlo_of_a_linear_map_has_the_exact_moments():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).requires_grad_(False)
    images, draws = torch.rand(5, 1, 2, 2), 20_000
    mean, stddev, probs = demo.monte_carlo(model, images, 0.25, draws, chunk=3000)
    truth = (0.25 * model[1].weight.square().sum(1)).sqrt().expand(5, 3)
    # z-scores: the mean's standard error is s/√n, the deviation's s/√(2n)
    assert ((mean - model(images)).abs() < 5 * truth / draws**0.5).all()
    assert ((stddev - truth).abs() < 5 * truth / (2 * draws) ** 0.5).all()
    assert torch.allclose(probs.sum(-1), torch.ones(5, dtype=torch.float64))
