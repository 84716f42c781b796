"""The figures of an answer, against cases whose figures are known."""

import math

import pytest
import torch

from momentprop.kernels.joint_posterior import log_posterior
from momentprop_experiments.reproduction.correlation import measures
from momentprop_experiments.reproduction.correlation.methods import Answer, by_draws
from momentprop_experiments.reproduction.correlation.truths import Noisy, draw

COUNT = 20_000


@pytest.fixture(scope="module")
def noisy():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4).requires_grad_(False)
    return Noisy(model, torch.randn(6, 3), torch.tensor([0.2, 1.0, 0.5]))


@pytest.fixture(scope="module")
def truth(noisy):
    return draw(noisy, COUNT, 4096, seed=0)


@pytest.fixture(scope="module")
def exact(noisy):
    covariance = (noisy.model.weight * noisy.variance) @ noisy.model.weight.T
    loc = noisy.model(noisy.inputs)
    covariance = covariance.expand(len(loc), -1, -1)
    variance = covariance.diagonal(dim1=1, dim2=2)
    return Answer(loc, variance, covariance, log_posterior(loc, covariance))


def test_exact_moments_have_the_floors_as_errors(exact, truth):
    found, floors = measures.figures(exact, truth, truth), measures.floors(truth)
    for name in ("eps_mean", "rms", "correlation"):
        assert found[name][0] == pytest.approx(floors[name], rel=0.6)
    assert found["sigma"][0] == pytest.approx(1, abs=0.02)
    assert found["coverage"][0] == pytest.approx(0.95, abs=0.02)
    assert abs(found["kl"][0]) < 2e-4


def test_errors_that_are_made_are_found(exact, truth):
    shift = truth.moments.stddev.mean()
    worse = Answer(exact.loc + shift, exact.variance / 4, torch.diag_embed(exact.variance), exact.log_q)
    found = measures.figures(worse, truth, truth)
    assert found["eps_mean"][0] == pytest.approx(1, abs=0.02)
    assert found["sigma"][0] == pytest.approx(0.5, abs=0.01)
    assert found["rms"][0] == pytest.approx(math.log(2), abs=0.02)
    off = ~torch.eye(4, dtype=torch.bool)
    assert found["correlation"][0] == pytest.approx(
        float(measures.correlations(truth.covariance)[:, off].abs().mean()), rel=1e-3
    )
    assert found["coverage"][0] < 0.6


def test_the_divergence_of_another_posterior_is_that_of_the_exact_ones(exact, truth):
    other = torch.full((6, 4), 0.25).log()
    p = exact.log_q.exp()
    expected = float((p * (exact.log_q - other)).sum(-1).mean())
    value, error = measures.divergence(other, truth)
    assert value == pytest.approx(expected, rel=0.02)
    assert error > 0


def test_few_draws_do_not_bias_the_divergence(exact, noisy):
    values = [measures.divergence(exact.log_q, draw(noisy, 50, 300, seed))[0] for seed in range(20)]
    mean, error = sum(values) / 20, torch.tensor(values).std().item() / 20**0.5
    assert abs(mean) < 4 * error
    plain = [
        float((truth.posterior * (truth.posterior.log() - exact.log_q)).sum(-1).mean())
        for truth in (draw(noisy, 50, 300, seed) for seed in range(20))
    ]
    assert sum(plain) / 20 > 5 * abs(mean)  # without the correction


def test_units_that_a_method_does_not_know_give_no_figures(exact, truth):
    assert list(measures.figures(Answer(exact.loc), truth, truth)) == ["eps_mean"]


def test_draws_have_the_moments_of_the_network(exact, noisy):
    found = by_draws(noisy, 500, 64, True, seed=5)
    assert found.loc.shape == (6, 4)
    assert ((found.loc - exact.loc).abs() < 5 * (exact.variance / 500).sqrt()).all()
    assert torch.allclose(found.log_q.exp().sum(-1), torch.ones(6, dtype=torch.float64))
