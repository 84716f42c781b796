"""Class posteriors of noisy images by every method, and their cost."""

import torch

from momentprop_experiments.reproduction import posterior_scores
from momentprop_experiments.reproduction.calibration import (
    calibration_posterior,
)


def test_every_posterior_has_its_scores_and_its_cost(ran):
    data, text = ran(calibration_posterior.NAME)
    (case,) = data["cases"].values()
    found = case["methods"]
    names = ["AP1", "AP2", "calibrated AP2", "Monte Carlo, 8", "Monte Carlo, 32", "Monte Carlo, 128", "the truth"]
    assert list(found) == names
    assert [name for name in names if found[name]["forward_passes"] is None] == ["the truth"]
    assert found["Monte Carlo, 128"]["forward_passes"] > 4 * found["Monte Carlo, 8"]["forward_passes"]
    assert found["AP1"]["coverage"] == {}
    assert found["AP1"]["kl"] > found["calibrated AP2"]["kl"] > 0
    assert found["AP2"]["coverage"]["90"] < found["calibrated AP2"]["coverage"]["90"] < 1
    for name in names:
        assert f"| {name} " in text


def test_the_mean_of_many_draws_is_the_truth_of_a_linear_network():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4000, 3, 2, generator=generator)
    told = calibration_posterior._by_draws(draws)
    assert torch.allclose(told.log_q.exp(), draws.softmax(-1).mean(0))
    covered = posterior_scores.coverage(told.logits, torch.randn(4000, 3, 2, generator=generator))
    assert all(abs(covered[f"{100 * level:g}"] - level) < 0.02 for level in posterior_scores.LEVELS)
