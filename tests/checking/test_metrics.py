"""Figures against closed forms, their floors and worths by simulation."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from momentprop import Normal, check
from momentprop.checking import metrics
from momentprop.sampling import RunningMoments
from tests.checking.inputs import X, changed


def _estimate(draws: Tensor):
    moments = RunningMoments()
    moments.add(draws)
    return moments.estimate(torch.float64)


def test_exact_moments_of_a_linear_network_are_at_the_floor():
    x = torch.randn(500, 6)  # outputs of one input vary together, those of different inputs do not
    report = check(nn.Linear(6, 12), x, input_variance=torch.rand(6), samples=1000, classes=None)
    module = report["output"]
    ap2, floor = module.methods["ap2"], module.floor
    assert ap2.eps_mean == pytest.approx(floor.eps_mean, rel=0.1)
    assert ap2.rms_log_std == pytest.approx(floor.rms_log_std, rel=0.1)
    assert 1 / floor.eps_std < ap2.eps_std < floor.eps_std
    assert ap2.correlation == pytest.approx(floor.correlation, abs=0.02)
    for level in ("50", "90", "99"):
        assert abs(ap2.coverage[level] - float(level) / 100) < 4 * floor.coverage[level]


def test_a_wrong_method_shows_the_error_it_has():
    off = changed(lambda y: Normal(y.loc + 2 * y.stddev, 0.25 * y.variance))
    model = nn.Linear(6, 50)
    report = check(model, X, input_variance=0.1, methods=[("off", off)], classes=None)
    found = report["output"].methods["off"]
    assert found.eps_mean == pytest.approx(2, abs=0.05)
    assert found.eps_std == pytest.approx(0.5, abs=0.02)
    assert found.rms_log_std == pytest.approx(math.log(2), abs=0.03)
    # |z| < 0.6745/2 about 2: Phi(-1.66) - Phi(-2.34)
    assert found.coverage["50"] == pytest.approx(0.0385, abs=0.01)
    assert found.worth_mean == pytest.approx(2 / math.pi / 4, rel=0.05)


def test_exact_correlations_are_at_the_floor_and_wrong_ones_above():
    items, units, samples = 300, 4, 500
    root = torch.randn(items, units, units, dtype=torch.float64)
    exact = torch.stack([matrix / torch.outer(matrix.diag().sqrt(), matrix.diag().sqrt()) for matrix in root @ root.mT])
    draws = torch.linalg.cholesky(exact) @ torch.randn(items, units, samples, dtype=torch.float64)
    truth = torch.stack([torch.corrcoef(each) for each in draws])
    varies = torch.ones(items, units, dtype=torch.bool)
    floor = metrics.correlation_error_floor(truth, varies, samples)
    assert metrics.correlation_error(exact, truth, varies) == pytest.approx(floor, rel=0.05)
    off = ~torch.eye(units, dtype=torch.bool)
    assert metrics.correlation_error(None, truth, varies) == pytest.approx(float(truth[:, off].abs().mean()))
    varies[:, 0] = False  # whatever is said of such units does not count
    exact[:, 0], exact[:, :, 0] = torch.nan, torch.nan
    assert metrics.correlation_error(exact, truth, varies) == pytest.approx(floor, rel=0.1)


class Law(NamedTuple):
    """Independent units of which everything is known."""

    draw: object
    mean: float
    stddev: float


LAWS = {
    "normal": Law(lambda n, units: torch.randn(n, units, dtype=torch.float64), 0.0, 1.0),
    "exponential": Law(lambda n, units: torch.empty(n, units, dtype=torch.float64).exponential_(), 1.0, 1.0),
    "uniform": Law(lambda n, units: torch.rand(n, units, dtype=torch.float64), 0.5, 12**-0.5),
    "binary": Law(lambda n, units: (torch.rand(n, units) < 0.3).double(), 0.3, 0.21**0.5),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_floors_are_what_exact_moments_show(law):
    samples, units = 500, 4000
    scale = torch.linspace(0.9, 1.1, units, dtype=torch.float64)
    truth = _estimate(law.draw(samples, units) * scale)
    mean, stddev = law.mean * scale, law.stddev * scale
    assert metrics.eps_mean(mean, truth) == pytest.approx(metrics.eps_mean_floor(samples), rel=0.05)
    assert metrics.rms_log_std(stddev, truth) == pytest.approx(metrics.rms_log_std_floor(truth), rel=0.05)
    assert metrics.correlation(stddev, truth) == pytest.approx(metrics.correlation_ceiling(truth), abs=0.02)
    assert 1 / metrics.eps_std_floor(truth) < metrics.eps_std(stddev, truth) < metrics.eps_std_floor(truth)


def test_the_floor_of_deviations_holds_for_units_that_vary_together():
    ratios = []
    for _ in range(200):
        truth = _estimate(torch.randn(300, 1, dtype=torch.float64).expand(300, 5))
        ratios.append(math.log(metrics.eps_std(torch.ones(5, dtype=torch.float64), truth)))
    measured = torch.tensor(ratios).square().mean().sqrt().item()
    assert measured == pytest.approx(math.log(metrics.eps_std_floor(truth)), rel=0.15)


def _softmax_draws(samples: int, rows: int) -> Tensor:
    logits = torch.linspace(0, 2, 5, dtype=torch.float64) + torch.randn(samples, rows, 5, dtype=torch.float64)
    return logits.softmax(-1)


def test_the_floor_of_a_divergence_is_that_of_the_exact_posterior():
    exact = _softmax_draws(400_000, 1).mean(0)
    draws = _softmax_draws(500, 400)
    measured = metrics.divergence(draws.mean(0), exact.log())
    assert measured == pytest.approx(metrics.divergence_floor(draws.mean(0), draws.var(0), 500), rel=0.1)


@pytest.mark.parametrize("count", [50, 200])
def test_the_mean_of_so_many_draws_is_worth_so_many(count):
    truth = _estimate(torch.randn(1000, 20_000, dtype=torch.float64))
    method = _estimate(torch.randn(count, 20_000, dtype=torch.float64))
    error, floor = metrics.eps_mean(method.loc, truth), metrics.eps_mean_floor(1000)
    assert metrics.worth(error**2, floor**2, 1000) == pytest.approx(count, rel=0.1)
    error, floor = metrics.rms_log_std(method.stddev, truth), metrics.rms_log_std_floor(truth)
    assert metrics.worth(error**2, floor**2, 1000) == pytest.approx(count, rel=0.1)


def test_a_posterior_of_so_many_draws_is_worth_so_many():
    truth, method = _softmax_draws(1000, 2000), _softmax_draws(50, 2000).mean(0)
    floor = metrics.divergence_floor(truth.mean(0), truth.var(0), 1000)
    divergence = metrics.divergence(truth.mean(0), method.log())
    assert metrics.worth(divergence, floor, 1000) == pytest.approx(50, rel=0.15)


def test_errors_that_are_all_equal_look_at_most_a_seventh_smaller():
    samples, units = 1000, 100_000
    noise = torch.randn(units, dtype=torch.float64) / samples**0.5
    floor = metrics.eps_mean_floor(samples)
    for error in torch.linspace(0.01, 0.2, 20):
        seen = (error + noise).abs().mean().item()
        found = metrics.worth(seen**2, floor**2, samples)
        told = math.sqrt(2 / (math.pi * found))  # the error of so many draws
        if found < samples:
            assert 0.85 * error < told < 1.01 * error


def test_no_method_is_worth_more_than_the_draws():
    assert metrics.worth(0.9, 1.0, 1000) == 1000
    assert metrics.worth(1.01, 1.0, 1000) == 1000
    assert metrics.worth(3.0, 1.0, 1000) == 500


def test_a_check_finds_what_draws_are_worth():
    few = ("few", {"method": "sample", "samples": 40})
    x = torch.zeros(20, 60)  # so many independent noises that the worth hardly depends on the seed
    report = check(nn.Linear(60, 500), x, input_variance=0.3, methods=[few], seed=1, classes=None)
    found = report["output"].methods["few"]
    # the draws of the method share a seed with the first draws of the check, which are a 25th of all
    assert found.worth_mean == pytest.approx(40, rel=0.15)
    assert found.worth_std == pytest.approx(40, rel=0.15)
