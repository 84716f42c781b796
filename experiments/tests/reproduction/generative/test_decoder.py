"""The generative belief network: its bound, its estimators, and its resumed training."""

from itertools import product

import pytest
import torch

import momentprop
from momentprop_experiments.options import Options
from momentprop_experiments.reproduction.generative import decoder, digit_model
from momentprop_experiments.reproduction.generative.digit_model import Bound, DigitModel, bounds


@pytest.fixture
def small(monkeypatch):
    for name, units in (("PIXELS", 5), ("LOWER", 3), ("UPPER", 2)):
        monkeypatch.setattr(digit_model, name, units)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DigitModel()
        for part in (model.generate_lower, model.generate_pixels):
            torch.nn.init.normal_(part.weight)
        return model, torch.bernoulli(torch.full((4, 5), 0.5))


@torch.no_grad()
def summed(model, x):
    """Sum the bound, and the likelihood itself, over all states of the hidden units."""
    odds_lower, odds_upper = model.infer(x)
    log_q, log_p = [], []
    for state in product((0.0, 1.0), repeat=5):
        lower, upper = torch.tensor(state[:3]), torch.tensor(state[3:])

        def log(units, odds):
            return torch.distributions.Bernoulli(logits=odds).log_prob(units).sum(-1)

        log_q.append(log(lower.expand_as(odds_lower), odds_lower) + log(upper.expand_as(odds_upper), odds_upper))
        pixels = log(x, model.generate_pixels(lower).expand_as(x))
        log_p.append(log(upper, model.prior) + log(lower, model.generate_lower(upper)) + pixels)
    q, p = torch.stack(log_q), torch.stack(log_p)
    return (q.exp() * (p - q)).sum(0).mean().item(), p.logsumexp(0).mean().item()


def test_the_bounds_are_those_of_sums(small):
    model, x = small
    bound, likelihood = summed(model, x)
    found = bounds(model, x, 20_000)
    assert found[0] == pytest.approx(bound, abs=0.1)
    assert found[1] == pytest.approx(likelihood, abs=0.1)


def test_ap2_takes_the_bound_in_one_pass(small):
    model, x = small
    output = momentprop.propagate(model.train(), x, covariance=False)
    loss = Bound(model)(output, x).mean()
    assert -loss.item() == pytest.approx(summed(model, x)[0], rel=0.02)


def test_the_score_function_has_the_gradient_of_the_summed_bound(small):
    model, x = small
    exact = []
    for step in (1e-3, -1e-3):
        with torch.no_grad():
            model.infer_lower.bias[1] += step
            exact.append(summed(model, x)[0])
            model.infer_lower.bias[1] -= step
    expected = -(exact[0] - exact[1]) / 2e-3
    model.draws, model.unit.gradient = 2, "score"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        many = x.repeat(5000, 1)
        Bound(model)(model.train()(many), many).mean().backward()
    assert model.infer_lower.bias.grad[1].item() == pytest.approx(expected, abs=0.05)


def test_a_second_call_reads_what_the_first_has_trained(tmp_path, monkeypatch):
    options = Options(quick=True, device="cpu", runs=tmp_path / "runs")
    first = decoder.run(tmp_path, options)
    assert (tmp_path / "runs" / "decoder-quick" / "ap2-0" / "bounds-2.json").exists()
    monkeypatch.setattr(decoder, "fit", None)
    again = decoder.run(tmp_path, options).data
    assert (again["rows"], again["rows_made"]) == (first.data["rows"], first.data["rows_made"])
    assert {row["estimator"] for row in first.data["rows"]} == set(decoder.ESTIMATORS)
    (made,) = first.data["rows_made"]
    assert made["device"].startswith("cpu (")
