"""The dropout experiment: its runs start at the same point, and are neither trained nor tested twice."""

import dataclasses
import json

import pytest
import torch

from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.dropout import dropout
from momentprop_experiments.reproduction.dropout.dropout_figure import plot, running
from momentprop_experiments.reproduction.dropout.dropout_report import markdown
from momentprop_experiments.reproduction.stored import same_command
from momentprop_experiments.runs import schedule
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import build, load_data, split

ROOT = results_folder().parent
RESULTS = ROOT / "results" / "paper"


def test_the_published_curves_are_those_of_the_present_runs():
    published = json.loads((RESULTS / "dropout.json").read_text())["networks"]
    cases = dropout.cases(Options())
    assert list(cases) == list(published) == ["lenet", "cifar"]
    for network, group in cases.items():
        assert all(same_command(run, group[name]) for name, run in published[network]["runs"].items())
    assert all(config.epochs == 60 and config.norm != "bn" for config in cases["cifar"].values())
    assert all(config.train_images == 1000 for config in cases["lenet"].values())


def test_every_way_has_seeds_of_the_plain_training():
    for group in dropout.cases(Options()).values():
        seeds = {}
        for config in group.values():
            seeds.setdefault((dropout._way(config), config.dropout), set()).add(config.seed)
        assert seeds.pop(("plain", 0.0)) == {0, 1, 2}
        assert seeds == {(way, p): {0, 1, 2} for way in list(dropout.WAYS)[1:] for p in (0.2, 0.3)}
        assert len(group) == 3 + 2 * 6 * 3


def test_runs_whose_numbers_are_stored_are_not_made_again():
    stored = json.loads((RESULTS / "dropout.json").read_text())["networks"]["cifar"]["runs"]
    cases = dropout.cases(Options(device="cpu"))["cifar"]
    kept = dropout._kept(cases, stored)
    assert "cifar-sampled-0.3-0" in kept
    halted = {**stored, "cifar-sampled-0.3-0": {**stored["cifar-sampled-0.3-0"], "test": None}}
    assert kept.keys() - dropout._kept(cases, halted).keys() == {"cifar-sampled-0.3-0"}
    longer = {name: dataclasses.replace(config, epochs=61) for name, config in cases.items()}
    assert dropout._kept(longer, stored) == {}
    config, old = cases["cifar-analytic-expected-0.3-0"], {"made": None}
    assert dropout.superseded(old, config)
    assert not dropout.superseded({"made": {"device": "cuda"}}, config)
    assert not dropout.superseded(old, cases["cifar-analytic-0.3-0"])


def test_all_but_the_normalized_network_begin_at_the_same_point():
    cases = dropout.cases(Options(quick=True, device="cpu"))["lenet"]
    points = {}
    for config in cases.values():
        training, _ = split(load_data(config), config)
        points[dropout._way(config)] = build(config, training).state_dict()
    for way in (way for way in dropout.WAYS if way != "analytic-norm"):
        assert points[way].keys() == points["plain"].keys()
        assert all(torch.equal(points[way][name], points["plain"][name]) for name in points["plain"])
    assert not torch.equal(points["analytic-norm"]["conv1.weight"], points["plain"]["conv1.weight"])


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("momentprop_experiments.runs.curves.draw_curves", lambda *_: [])  # another test draws them
        out = tmp_path_factory.mktemp("dropout")
        options = Options(quick=True, device="cpu", runs=out / "runs")
        result = dropout.run(out, options)
        assert [file.suffix for file in result.save(out, dropout.NAME)] == [".json", ".md", ".png", ".svg"]
        patch.delattr(schedule, "train")
        patch.delattr(dropout, "evaluate")
        assert dropout.run(out, options).data == result.data  # nothing is trained or tested again
    return result


def test_analytic_dropout_learns_faster_than_sampled_dropout(quick):
    found = {run["way"]: run for run in quick.data["networks"]["lenet"]["runs"].values()}
    assert list(found) == list(dropout.WAYS)
    assert found["analytic"]["train_loss"][-1] < found["sampled"]["train_loss"][-1] - 0.5
    assert found["analytic"]["validation_accuracy"][-1] > found["sampled"]["validation_accuracy"][-1]
    for method in dropout.TESTS:
        assert found["analytic"]["test"][method]["loss"] < found["sampled"]["test"][method]["loss"]
    assert found["plain"]["test"]["ap1"] == pytest.approx(found["plain"]["test"]["ap2"], rel=1e-3)  # nothing is random
    assert "Not complete" not in quick.markdown
    after_two = [running(found["plain"][f"validation_{name}"])[1] for name in ("accuracy", "loss")]
    assert f"| {after_two[0]:.1%}, {after_two[1]:.2f}" in quick.markdown  # beside the values at the end, for each way


def test_a_network_that_was_trained_anew_is_tested_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(dropout, "_test", lambda place, config, method, images: {"accuracy": len(tested)})
    tested = []
    for figure in (0.25, 0.25, 0.5):
        (tmp_path / "result.json").write_text(json.dumps({"test": {"accuracy": figure}}))
        tested.append(dropout.tests(tmp_path, Config(), None))
    assert tested == [{"ap1": {"accuracy": k}, "ap2": {"accuracy": k}} for k in (0, 0, 2)]


def test_a_run_that_is_not_done_does_not_count(quick, tmp_path):
    network = quick.data["networks"]["lenet"]
    name = "lenet-sampled-0.3-0"
    run = network["runs"][name]
    halted = {key: each[:1] if isinstance(each, list) else each for key, each in run.items()} | {"test": None}
    data = {"networks": {"lenet": {**network, "runs": {**network["runs"], name: halted}}}}
    text = markdown("x", data)
    assert "Not complete: 6 of 7 runs are done" in text
    (told,) = [line for line in text.splitlines() if name in line]
    assert [cell.strip() for cell in told.split("|")[1:3]] == [name, "1 of 2"]
    assert "| sampled dropout" not in text
    assert all(path.exists() for path in plot(tmp_path, "x", data))
    nothing = {"networks": {"lenet": {**network, "runs": {}}}}
    assert "Not complete: 0 of 7 runs are done" in markdown("x", nothing)
    assert all(path.exists() for path in plot(tmp_path, "x", nothing))
