"""The paper's examples: each runs quickly, and its numbers are those of independent sums and quadratures."""

import json
import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.gates import and_gate
from momentprop_experiments.reproduction.logistic_units import density, kl_bias
from momentprop_experiments.reproduction.nonlinearities import activations
from momentprop_experiments.reproduction.outcome import Outcome, table
from momentprop_experiments.reproduction.registry import EXPERIMENTS

RESULTS = results_folder() / "paper"
METHODS = ("AP1", "AP2a", "AP2b", "MacKay", "PEA", "AP2 (default)")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The numbers of an experiment in quick mode, as its file has them."""
    done = {}

    def read(name):
        if name not in done:
            out = tmp_path_factory.mktemp(name)
            files = EXPERIMENTS[name].run(out, Options(quick=True)).save(out, name)
            assert [file.name for file in files] == [f"{name}.{ending}" for ending in ("json", "md", "png", "svg")]
            assert all(file.stat().st_size > 0 for file in files)
            done[name] = json.loads(files[0].read_text())
        return done[name]

    return read


def enumerate_unit(weights, bias, p):
    """E S(b + w'X) by a plain loop over all states of the inputs."""
    total = 0.0
    for state in product((0, 1), repeat=len(weights)):
        probability = math.prod(q if x else 1 - q for x, q in zip(state, p, strict=True))
        total += probability / (1 + math.exp(-bias - sum(w * x for w, x in zip(weights, state, strict=True))))
    return total


@pytest.mark.parametrize(("name", "bias"), [("and-gate", -8.833316937499322), ("or-gate", -2.9444389791664403)])
def test_the_gates_are_those_of_a_plain_sum(name, bias, data):
    gate = data(name)
    assert gate["slope"] == pytest.approx(5.888877958332881, rel=1e-14)
    assert gate["bias"] == pytest.approx(bias, rel=1e-14)
    for row in gate["rows"]:
        expected = enumerate_unit((gate["slope"],) * 2, gate["bias"], row["inputs"])
        assert row["exact"] == pytest.approx(expected, rel=1e-12)
        assert row["AP1"] == pytest.approx(special.expit(gate["slope"] * sum(row["inputs"]) + gate["bias"]), rel=1e-12)
        assert abs(row["sampling"] - expected) <= 5 * row["sampling_standard_error"]


def test_the_and_gate_agrees_with_the_printed_table(data):
    rows = data("and-gate")["rows"]
    for row in rows:
        for name in ("exact", "AP1"):
            printed = row["printed"][name]
            if row["inputs"] != [0.25, 0.25]:
                assert row[name] == pytest.approx(printed, rel=0.03)
    quarter = rows[3]
    assert quarter["exact"] == pytest.approx(0.0782, abs=5e-5)
    assert quarter["AP1"] == pytest.approx(0.00276, abs=5e-6)
    assert rows[1]["with_printed_constants"]["exact"] == pytest.approx(0.988, abs=5e-4)


def test_ap2_tells_and_inputs_apart_that_ap1_confuses(data):
    rows = {tuple(row["inputs"]): row for row in data("and-gate")["rows"]}
    one, half = rows[0.0, 1.0], rows[0.5, 0.5]
    assert one["AP1"] == pytest.approx(half["AP1"])
    assert abs(half["AP2 (default)"] - half["exact"]) < 0.01
    assert abs(half["AP1"] - half["exact"]) > 0.2


def test_the_or_gate_mirrors_the_and_gate(data):
    conjunction = {tuple(row["inputs"]): row for row in data("and-gate")["rows"]}
    for row in data("or-gate")["rows"]:
        mirrored = conjunction.get(tuple(1 - p for p in reversed(row["inputs"])))
        for method in ("exact", *METHODS):
            assert row[method] == pytest.approx(1 - mirrored[method], rel=1e-6)


def test_the_piecewise_exponential_is_the_laplace_cdf(data):
    pea = data("pea")
    x = np.array(pea["x"])
    assert np.allclose(pea["piecewise_exponential"], stats.laplace.cdf(x, scale=1 / math.log(2)), atol=1e-5)
    assert pea["largest_difference"] == pytest.approx(0.0245, abs=5e-5)


def test_the_density_is_that_of_the_printed_weights(data):
    rows = data("density")["rows"]
    assert [row["inputs"] for row in rows] == list(range(11))
    assert rows[10]["mean"] == pytest.approx(sum(density.WEIGHTS) / 2)
    assert rows[10]["variance"] == pytest.approx(sum(w * w for w in density.WEIGHTS) / 4 + math.pi**2 / 3)
    x = torch.linspace(-40, 80, 4001, dtype=torch.float64)
    two = density.Sum.of(torch.tensor(density.WEIGHTS[:2], dtype=torch.float64), x)
    by_hand = sum(stats.logistic.pdf(x.numpy() - u) for u in (0, 5.1, 4.6, 9.7)) / 4
    assert np.allclose(two.density, by_hand)
    assert torch.trapezoid(two.density, x).item() == pytest.approx(1, abs=1e-9)
    assert np.allclose(two.cdf, integrate.cumulative_simpson(by_hand, x=x.numpy(), initial=0), atol=1e-7)
    assert rows[10]["largest_cdf_difference"] < 0.25 * rows[1]["largest_cdf_difference"]


def test_the_divergences_in_bits_are_those_of_a_plain_sum(data):
    result = data("kl-bias")
    at = result["biases"].index(-5.0)
    for inputs in kl_bias.INPUTS:
        weights = density.WEIGHTS[:inputs]
        p = enumerate_unit(weights, -5.0, (0.5,) * inputs)
        q = special.expit(sum(weights) / 2 - 5.0)
        expected = p * math.log2(p / q) + (1 - p) * math.log2((1 - p) / (1 - q))
        assert result["curves"][str(inputs)]["AP1"][at] == pytest.approx(expected, rel=1e-3, abs=1e-12)
        assert result["truth"][str(inputs)][at] == pytest.approx(p, rel=1e-4)


def test_every_ap2_has_less_divergence_than_ap1(data):
    result = data("kl-bias")
    for figures in result["mean"].values():
        for method in METHODS[1:]:
            assert figures[method] < 0.2 * figures["AP1"]


def test_the_interval_holds_nine_tenths_of_the_trials():
    biases = torch.tensor([-4.0], dtype=torch.float64)
    few, many = (kl_bias.measure(2, biases, trials) for trials in (1000, 4000))
    assert few.interval[0] < few.sampling < few.interval[1]
    # the mean of trials of KL about s**2 / 2 p (1 - p) in nats, s the standard error of 50 draws
    p = enumerate_unit(density.WEIGHTS[:2], -4.0, (0.5, 0.5))
    states = special.expit(np.array([0, 5.1, 4.6, 9.7]) - 4.0)
    expected = states.var() / kl_bias.DRAWS / (2 * p * (1 - p)) / math.log(2)
    assert many.sampling.item() == pytest.approx(expected, rel=0.15)


def test_the_moments_of_the_units_agree_with_draws(data):
    result = data("activations")
    assert set(result["units"]) == set(activations.UNITS)
    for unit in result["units"].values():
        assert unit["largest_z_of_mean"] < 5
        assert unit["largest_z_of_variance"] < 5
    means = np.array(result["input_means"])
    assert np.allclose(result["units"]["Heaviside"]["mean"], stats.norm.cdf(means), rtol=1e-5)
    rectified = means * stats.norm.cdf(means) + stats.norm.pdf(means)
    assert np.allclose(result["units"]["ReLU"]["mean"], rectified, rtol=1e-5)


def test_the_mean_of_relu_is_that_of_a_quadrature(data):
    result = data("relu-mean")
    scale = math.sqrt(3) / math.pi
    for name, density_of in (("normal", stats.norm.pdf), ("logistic", lambda z: stats.logistic.pdf(z, scale=scale))):
        for x, value in list(zip(result["x"], result["curves"][name], strict=True))[::8]:
            expected = integrate.quad(lambda y, x=x, f=density_of: y * f(y - x), 0, 40, points=[max(x, 0.1)])[0]
            assert value == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert result["largest_difference"]["logistic"] == pytest.approx(0.0168, abs=1e-4)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_results_in_the_repository_are_complete_and_small(name):
    for ending, most in (("json", 150_000), ("md", 25_000), ("png", 150_000), ("svg", 400_000)):
        assert 0 < (RESULTS / f"{name}.{ending}").stat().st_size < most
    assert (RESULTS / f"{name}.md").read_text(encoding="utf-8").startswith(f"# {EXPERIMENTS[name].TITLE}\n")


def test_the_published_and_gate_is_the_computed_one(data):
    stored = json.loads((RESULTS / "and-gate.json").read_text())
    for stored_row, row in zip(stored["rows"], data("and-gate")["rows"], strict=True):
        for method in ("gate", "exact", *METHODS):
            assert stored_row[method] == pytest.approx(row[method], rel=1e-9)
    assert and_gate.GATE.bias == stored["bias"]


def test_a_result_writes_an_innermost_list_on_one_line(tmp_path):
    data = {"a": [1, 2, 3], "b": [{"c": ["x, y", 2.5]}], "d": []}
    Outcome(data, table(("a", "b"), [("1", "long")])).save(tmp_path, "x")
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == data
    assert '"a": [1, 2, 3]' in text
    assert (tmp_path / "x.md").read_text() == "| a | b    |\n|---|------|\n| 1 | long |\n"


def test_a_result_refuses_numbers_that_json_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Outcome({"a": math.inf}, "").save(tmp_path, "x")
