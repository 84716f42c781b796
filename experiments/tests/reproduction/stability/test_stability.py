"""The experiments on stability: their figures, and the order that must hold in them."""

import dataclasses
import json

import pytest
import torch

from momentprop.errors import UserError
from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.stability import (
    robustness,
    stability,
    stability_deep,
    stability_deep_report,
    stability_report,
)
from momentprop_experiments.runs import schedule

RESULTS = results_folder() / "paper"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Return the options, folder and outcome of a quick run."""
    return quickly(stability, tmp_path_factory.mktemp("stability"))


@pytest.fixture(scope="module")
def quick_deep(tmp_path_factory):
    """Return the same for the deeper networks."""
    return quickly(stability_deep, tmp_path_factory.mktemp("stability-deep"))


def quickly(experiment, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("momentprop_experiments.runs.curves.draw_curves", lambda *_: [])  # another test draws them
        options = Options(quick=True, device="cpu", runs=folder / "runs")
        return options, folder, experiment.run(folder, options)


def test_the_odds_are_one_where_the_class_is_right():
    log_q = torch.tensor([[0.9, 0.09, 0.01], [0.9, 0.09, 0.01]], dtype=torch.float64).log()
    found = robustness.figures(log_q, torch.tensor([0, 1]))
    assert found["accuracy"] == 0.5
    assert found["odds"] == pytest.approx(0.5)
    assert found["odds_of_errors"] == pytest.approx(1.0)
    assert robustness.figures(log_q, torch.tensor([0, 0]))["odds_of_errors"] is None


def _require_the_order_of_noise_and_attacks(curves):
    for curve in curves.values():
        clean, noisy = curve["noise"]["accuracy"]["mean"]
        assert clean > 0.85
        assert noisy < clean
        (sign,), (descent,) = (curve[attack]["accuracy"]["mean"] for attack in ("fgsm", "pgd"))
        assert descent <= sign + 0.01  # more steps are the stronger attack
        assert sign < clean - 0.2


def _odds(curves, name):
    return curves[name]["noise"]["odds"]["each"]


def test_a_quick_run_has_all_curves_in_the_order_that_must_hold(quick):
    _, folder, result = quick
    assert [file.suffix for file in result.save(folder, "x")] == [".json", ".md", ".png", ".svg"]
    curves = result.data["curves"]
    assert len(curves) == 15
    _require_the_order_of_noise_and_attacks(curves)
    assert _odds(curves, "bernoulli-expected, AP2") != _odds(curves, "bernoulli-ap2, AP2")  # the losses differ
    standard, normalized = curves["standard, AP1"], curves["batch-norm, AP1"]
    for change in ("noise", "fgsm", "pgd"):
        assert normalized[change]["accuracy"]["mean"][-1] < standard[change]["accuracy"]["mean"][-1]
        assert normalized[change]["odds"]["mean"][-1] > standard[change]["odds"]["mean"][-1]
    assert "| not settled: " in result.markdown  # by one seed
    ((first, last),) = result.data["training_loss"]["batch-norm"]
    assert first > last > 0


def test_a_second_run_neither_trains_nor_measures(quick, monkeypatch):
    options, folder, result = quick
    monkeypatch.delattr(schedule, "train")
    monkeypatch.delattr(robustness.Job, "measure")
    assert stability.run(folder, options).data == result.data


@pytest.mark.parametrize(("experiment", "count"), [(stability, 7), (stability_deep, 10)])
def test_networks_that_the_time_limit_left_untrained_are_counted(experiment, count, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "complete", lambda wanted, *_: list(wanted)[:2])
    with pytest.raises(UserError, match=f"2 of {count} networks are not trained yet: run the same command again"):
        experiment.run(tmp_path, Options(quick=True, device="cpu", runs=tmp_path))


def _measured(place):
    return {**json.loads((place / "stability.json").read_text()), "training_loss": robustness.training_loss(place)}


def test_seeds_that_are_trained_are_told_without_the_others(quick, monkeypatch):
    options, folder, result = quick
    monkeypatch.setattr(stability, "QUICK", dataclasses.replace(stability.QUICK, seeds=2))
    monkeypatch.setattr(robustness.Job, "__call__", lambda job: _measured(job.place))
    monkeypatch.setattr(stability, "complete", lambda wanted, *_: [name for name in wanted if name.endswith("1")])
    found = stability.run(folder, options)
    assert found.data["curves"] == result.data["curves"]
    assert (found.data["seeds"], found.data["wanted"]) == (1, 2)
    assert "over 1 seed (of 2: the same command trains the others)" in found.markdown


def test_deeper_networks_have_all_curves_in_order(quick_deep):
    _, folder, result = quick_deep
    assert [file.suffix for file in result.save(folder, "x")] == [".json", ".md", ".png", ".svg"]
    curves = result.data["networks"]["mlp"]["curves"]
    assert len(curves) == 17
    _require_the_order_of_noise_and_attacks(curves)
    standard, units = curves["standard, AP1"]["pgd"], curves["bernoulli-ap2, AP2"]["pgd"]
    normalized = curves["batch-norm, AP1"]["pgd"]
    assert normalized["accuracy"]["mean"] < standard["accuracy"]["mean"]
    assert normalized["accuracy"]["mean"] < units["accuracy"]["mean"]
    assert units["odds_of_errors"]["mean"][0] < standard["odds_of_errors"]["mean"][0] - 0.2  # less sure where wrong
    for kind in ("noise", "bernoulli"):
        plain, calibrated = curves[f"{kind}-ap2, AP2"], curves[f"{kind}-calibrated, calibrated AP2"]
        names = (f"{kind}-ap2, AP2", f"{kind}-expected, AP2", f"{kind}-calibrated, calibrated AP2")
        assert len({str(_odds(curves, name)) for name in names}) == 3
        ours, other = (curve["noise"]["accuracy"]["mean"] for curve in (calibrated, plain))
        assert all(a > b - 0.05 for a, b in zip(ours, other, strict=True))  # corrections do no harm


@pytest.mark.full
def test_networks_are_measured_side_by_side_to_the_same_figures(quick_deep):
    options, folder, result = quick_deep
    for file in folder.glob("runs/*/*noise*/stability.json"):
        file.unlink()
    again = stability_deep.run(folder, dataclasses.replace(options, jobs=2))
    assert again.data == result.data


def test_one_seed_is_trained_first_and_its_longest_run_first(monkeypatch):
    monkeypatch.setattr(stability_deep, "as_device", lambda _: torch.device("cuda"))
    all_runs = (each.runs("cuda") for each in stability_deep.networks(Options()).values())
    names = [
        name for name, _ in sorted((run for runs in all_runs for run in runs.items()), key=stability_deep._urgency)
    ]
    assert len(names) == len(set(names)) == 10 * (3 + 2)
    assert all(name.startswith("cifar") for name in names[-10:])
    assert all(name.startswith("cifar") for name in names[:10])
    assert all(name.endswith("-0") for name in names[:20])
    assert {name.split("-")[2] for name in names[:6]} == {"ap2", "expected", "calibrated"}


def test_a_network_of_which_no_seed_is_done_is_told(quick_deep):
    data = quick_deep[2].data
    assert data["missing"] == []
    assert "Not complete" not in quick_deep[2].markdown
    told = stability_deep_report.markdown("x", {**data, "missing": ["cifar"]})
    assert "Not complete: no seed of the CIFAR network is done" in told


def _data(accuracies, odds=None, seeds=2):
    """Return data with the same figures of every seed under all changes, at a level of zero and one above it."""
    each = {name: {"accuracy": {"each": [[1.0] * seeds, list(found)]}} for name, found in accuracies.items()}
    for name, found in (odds or {}).items():
        each[name]["odds_of_errors"] = {"each": [[None] * seeds, *found]}
    changes = ("noise", "fgsm", "pgd")
    curves = {name: dict.fromkeys(changes, found) for name, found in each.items()}
    return {"noise": [0, 1, 2], "attacks": [0, 1, 2], "seeds": seeds, "curves": curves}


def test_an_answer_counts_the_claims_that_hold():
    data = _data({"a": [0.8, 1.0], "b": [0.4, 0.6]}) | {"noise": [0, 1], "attacks": [0, 1]}
    claims = (("x", "a", "b"), ("y", "b", "a"), ("z", "a", "a"))
    said = stability_deep_report._answer("Does it help?", data, claims)
    assert said == "Does it help? Yes in 3, no in 3, not settled in 3 of 9 cases."


def test_odds_are_compared_where_every_seed_errs():
    odds = {"a": [[1.0, 1.2], [2.0, 9.0]], "b": [[3.0, 3.2], [None, 5.0]], "c": [[None, 1.0], [1.0, None]]}
    data = _data({"a": [0.5, 0.5], "b": [0.5, 0.5], "c": [0.5, 0.5]}, odds)
    gap = stability_report.odds_difference(data, "fgsm", "a", "b")
    assert (gap.mean, gap.seeds) == (pytest.approx(2.0), 2)  # of the first level alone
    assert stability_report.odds_difference(data, "fgsm", "a", "c") is None
    data |= {"noise": [0, 1], "attacks": [0, 1]}
    accuracy, lower_odds = stability_report.claims(data, [("it is", "a", "b"), ("is it", "a", "c")])
    assert accuracy.count("not settled: +0.0 ± 0.0") == 6
    assert [row.split("|")[2].strip() for row in lower_odds.splitlines()[2:]] == ["yes: +2.00 ± 0.00", "–"]


def test_a_difference_is_judged_by_its_error_over_seeds():
    curves = {
        "a": {"noise": {"accuracy": {"each": [[0.9, 0.9], [0.8, 0.8], [0.6, 0.6]]}}},
        "b": {"noise": {"accuracy": {"each": [[0.1, 0.9], [0.7, 0.7], [0.4, 0.44]]}}},
    }
    data = {"noise": [0, 1, 2], "seeds": 2, "curves": curves}
    gap = stability_report.difference(data, "noise", "a", "b")
    assert gap.mean == pytest.approx((0.15 + 0.13) / 2)
    assert gap.error == pytest.approx(0.01)
    assert gap.verdict == "yes"  # 0.14 is more than 12.7 errors
    one = stability_report.difference({**data, "seeds": 1}, "noise", "a", "b")
    assert (one.mean, one.error, one.verdict) == (pytest.approx(0.15), None, "not settled")


def test_published_verdicts_judge_gradient_signs_and_odds_too():
    for name, rows in (("stability", 7), ("stability-deep", 9)):
        text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        tables = 1 if name == "stability" else 2
        for head in ("| more accurate, ", "| errs at lower odds, "):
            assert text.count(head) == tables
            judged = text.split(head)[1].split("\n\n")[0].splitlines()[2:]
            assert len(judged) == rows
            assert all(len(row.split("|")) == 6 for row in judged)


def test_published_stability_curves_are_of_five_seeds():
    data = json.loads((RESULTS / "stability.json").read_text())
    assert (data["data"], data["seeds"]) == ("mnist", 5)
    clean = [curve["noise"]["accuracy"]["mean"][0] for curve in data["curves"].values()]
    assert 0.955 < min(clean) <= max(clean) < 0.99  # the paper: all are alike without noise
    for change in ("noise", "fgsm", "pgd"):
        assert stability_report.difference(data, change, "standard, AP1", "batch-norm, AP1").verdict == "yes"


def test_published_deeper_networks_have_learned_but_for_one_kind():
    networks = json.loads((RESULTS / "stability-deep.json").read_text())["networks"]
    assert {name: found["seeds"] for name, found in networks.items()} == {"lenet": 3, "cifar": 2}
    for name, found in networks.items():
        assert len(found["curves"]) == 17
        clean = {kind: curve["noise"]["accuracy"]["mean"][0] for kind, curve in found["curves"].items()}
        least = {"lenet": 0.96, "cifar": 0.5}[name]
        unlearned = {kind.split(",")[0] for kind, accuracy in clean.items() if accuracy < least}
        assert unlearned == ({"bernoulli-expected"} if name == "cifar" else set())
