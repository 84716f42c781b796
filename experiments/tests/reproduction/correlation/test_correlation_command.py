"""`momentprop paper correlation`: its figures, its tables, what it keeps, and what refuses."""

import json

import pytest
import torch

import momentprop
from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.calibration import calibration_cases
from momentprop_experiments.reproduction.correlation import correlation, effort, kept_results, truths
from momentprop_experiments.reproduction.correlation.correlation_cases import CASES, SMALL
from momentprop_experiments.reproduction.correlation.correlation_report import markdown
from momentprop_experiments.reproduction.correlation.correlation_targets import (
    LARGER_NOISE,
    SMALL_NOISE,
    TARGETS,
    Target,
    judged,
)
from momentprop_experiments.reproduction.correlation.methods import DRAWS, METHODS, TRUE, answer
from momentprop_experiments.reproduction.correlation.refusals import refusal
from momentprop_experiments.reproduction.correlation.truths import Noisy

PUBLISHED = results_folder() / "paper" / "correlation.json"


def test_every_case_has_the_figures_of_every_method_that_runs(ran):
    data, text = ran(correlation.NAME)
    assert list(data["cases"]) == list(effort.QUICK.cases)
    for case in data["cases"].values():
        missing = set(case["refused"])
        assert {"ap1", "ap2", "joint", "calibrated", "calibrated-joint", "draws"} <= set(case["methods"])
        assert not missing & set(case["methods"])
        expected = {name for name, method in METHODS.items() if not method.full or name in case["methods"]}
        assert expected <= set(case["methods"]) | missing | {"full"}
        assert case["methods"]["joint"]["eps_mean"] == case["methods"]["ap2"]["eps_mean"]
        assert 0.8 < case["methods"]["joint"]["sigma"][0] < 1.25
        assert case["methods"]["ap2"]["cost"] > 0
        assert text.count(f"| {case['title']} ") >= 3
    assert data["cases"]["sensor"]["methods"]["ap2"]["sigma"][0] < 0.6
    assert "kl" not in data["cases"]["sensor"]["methods"]["joint"]
    digits = data["cases"]["digits-mlp-0.25"]["methods"]
    assert digits["joint"]["kl"][0] < digits["ap2"]["kl"][0]
    assert TRUE in digits
    assert digits["draws"]["draws"] >= 2
    assert data["he_mlps"]["mse"]["ap2"][0] < data["he_mlps"]["mse"]["ap1"][0]


def test_the_figures_of_a_method_are_those_of_propagate():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).requires_grad_(False)
    x, variance = torch.randn(5, 3), torch.tensor([0.1, 0.2, 0.3])
    y = momentprop.propagate(model, x, input_variance=variance, covariance=True)
    found = answer(METHODS["joint"], Noisy(model, x, variance), batch=2, classes=True)
    assert torch.allclose(found.loc, y.loc)
    assert torch.allclose(found.covariance, y.covariance, rtol=1e-4, atol=1e-7)
    draws = torch.distributions.MultivariateNormal(y.loc, y.covariance).sample((20_000,))
    assert torch.allclose(found.log_q.exp(), draws.softmax(-1).mean(0), atol=5e-3)
    plain = answer(METHODS["ap2"], Noisy(model, x, variance), batch=3, classes=False)
    assert plain.covariance is None
    assert plain.log_q is None
    factorized = momentprop.propagate(model, x, input_variance=variance, covariance=False)
    assert torch.allclose(plain.variance, factorized.variance)


def test_a_second_call_measures_nothing_again(tmp_path, monkeypatch):
    options = Options(quick=True, device="cpu", runs=tmp_path)
    few = effort.QUICK.__class__(**{**vars(effort.QUICK), "cases": ("sensor",)})
    monkeypatch.setattr(effort, "QUICK", few)
    first = correlation.measure(options)
    for module, name in ((truths, "draw"), (momentprop, "propagate"), (momentprop, "calibrate")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("it was measured again"))
    assert correlation.measure(options) == first


def test_results_of_other_settings_or_of_another_source_are_not_reused(tmp_path, monkeypatch):
    place = tmp_path / "case.json"

    def kept(draws, x):
        return kept_results.kept(place, {"draws": draws}, lambda: {"x": x}, torch.device("cpu"))

    first = kept(1, 1)
    assert first["x"] == 1
    assert first["made"]["device"].startswith("cpu (")
    assert kept(1, 2) == first
    assert kept(2, 3)["x"] == 3
    monkeypatch.setattr(kept_results, "_source", lambda: "another")
    assert kept(2, 4)["x"] == 4


def test_fewer_images_can_be_asked_for():
    asked = effort.chosen(Options(device="cpu", images=5))
    assert (asked.images, asked.deep) == (5, 5)
    assert effort.chosen(Options(device="cpu")) == effort.ON_CPU


def test_a_full_run_asks_for_what_the_evidence_needs():
    assert effort.FULL.images >= 1000
    assert min(amount.draws for amount in effort.FULL.amounts.values()) >= 20_000
    assert {case.group for case in CASES.values()} == set(effort.FULL.amounts) == set(effort.ON_CPU.amounts)


def test_the_cases_are_those_of_calibration_the_narrow_network_and_the_small_ones():
    assert set(calibration_cases.CASES) | set(SMALL) | {"narrow-0.01", "narrow-0.1"} == set(CASES)
    assert {target for each in TARGETS for target in each.cases} <= set(CASES)
    assert set(SMALL_NOISE) | set(LARGER_NOISE) | {"digits-maxima", "mlp-16"} == set(CASES)
    assert set(DRAWS.values()) <= set(METHODS)


def test_a_method_that_refuses_is_named_with_its_reason():
    refused = {}
    with refusal(refused, "full"):
        raise NotImplementedError("no rule\nsecond line")
    assert refused == {"full": "NotImplementedError: no rule"}
    with pytest.raises(KeyboardInterrupt), refusal(refused, "joint"):
        raise KeyboardInterrupt


def _data(**figures):
    case = {"methods": {"joint": figures, "ap2": {"kl": [0.1, 0.01]}}, "bound": 10.0}
    return {"cases": {"lenet-dropout": case}}


@pytest.mark.parametrize(("value", "missed"), [(1.06, []), (1.08, ["lenet-dropout"]), (0.94, ["lenet-dropout"])])
def test_a_target_is_missed_where_a_figure_leaves_its_range(value, missed):
    target = Target("σ", ("lenet-dropout", "lenet-bernoulli"), "joint", "sigma", (0.95, 1.07), (0.98, 1.02), "probes16")
    verdict = judged(target, _data(sigma=[value, 0.01]))
    assert verdict.found == {"lenet-dropout": value}
    assert verdict.missed == missed
    assert verdict.further == {}


def test_a_target_may_be_relative_to_another_method_or_to_the_bound():
    kl = Target("KL", ("lenet-dropout",), "joint", "kl", (-1.0, 0.2), relative_to="ap2")
    assert judged(kl, _data(kl=[0.01, 0.001])).found["lenet-dropout"] == pytest.approx(0.1)
    cost = Target("cost", ("lenet-dropout",), "joint", "cost", (-1.0, 1.2), relative_to="bound")
    assert judged(cost, _data(cost=13.0)).missed == ["lenet-dropout"]


def test_the_text_stays_small_with_all_cases(ran):
    data = ran(correlation.NAME)[0]
    widest = data["cases"]["digits-mlp-0.25"]
    methods = dict.fromkeys(METHODS, widest["methods"]["joint"]) | widest["methods"]
    cases = {
        name: {**widest, "title": case.title, "refused": {}, "methods": methods}
        for name, case in CASES.items()
        if case.network != "resnet18"
    }
    for case in cases.values():
        case["methods"] = {name: each for name, each in methods.items() if name != "full" or case["title"] == "MLP"}
    text = markdown(correlation.TITLE, {**data, "cases": cases, "he_mlps": {**data["he_mlps"], "refused": {}}})
    assert len(text.encode()) < 25_000


def test_the_published_text_is_that_of_its_numbers():
    data = json.loads(PUBLISHED.read_text())
    text = PUBLISHED.with_suffix(".md").read_text(encoding="utf-8")
    assert text == markdown(correlation.TITLE, data) + "\n"
