"""Intervals and verdicts over seeds, against scipy and against draws."""

import pytest
import torch
from scipy.special import stdtrit

from momentprop_experiments.reproduction.by_seed import NO, OPEN, YES, BySeed, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_quantiles_are_those_of_scipy(freedom, level):
    assert t_quantile(freedom, level) == pytest.approx(stdtrit(freedom, (1 + level) / 2), rel=1e-9)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_a_verdict_without_a_difference_is_wrong_one_time_in_twenty(seeds):
    runs = torch.randn(4000, seeds, generator=torch.Generator().manual_seed(seeds), dtype=torch.float64)
    wrong = sum(BySeed.of(each).verdict != OPEN for each in runs.tolist())
    assert abs(wrong - 200) < 5 * (4000 * 0.05 * 0.95) ** 0.5  # five standard errors


def test_a_verdict_has_the_sign_of_the_mean():
    assert BySeed.of([1.0, 1.1, 0.9]).verdict == YES
    assert BySeed.of([-1.0, -1.1, -0.9]).verdict == NO
    assert BySeed.of([1.0, -1.1, 0.9]).verdict == BySeed.of([0.0, 0.0]).verdict == OPEN


def test_one_seed_settles_nothing():
    found = BySeed.of([0.5])
    assert (found.half_width, found.verdict, found.points) == (None, OPEN, "+50.0")


def test_a_summary_is_as_good_as_the_runs():
    runs = [0.1, 0.4, 0.35, 0.2]
    found = BySeed.of(runs)
    assert BySeed(found.mean, found.error, 4).half_width == found.half_width
    assert found.text(digits=2, sign="").startswith("0.26 ± ")
