"""Looks at networks in training with dropout: their figures are those of draws, and no run is made twice."""

import dataclasses
import json

import pytest
import torch
from torch import nn

import momentprop
from momentprop_experiments.options import Options
from momentprop_experiments.reproduction.dropout import dropout_cause
from momentprop_experiments.reproduction.dropout.dropout_cause_report import _at_time
from momentprop_experiments.reproduction.dropout.dropout_look import Look, _correlation


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cause")
    options = Options(quick=True, device="cpu", runs=folder / "runs")
    result = dropout_cause.run(folder, options)
    assert [file.suffix for file in result.save(folder, dropout_cause.NAME)] == [".json", ".md", ".png", ".svg"]
    return options, folder, result


def test_a_quick_run_looks_at_every_way(quick):
    _, _, result = quick
    runs = result.data["networks"]["deep-mlp"]["runs"]
    assert {run["way"] for run in runs.values()} == set(dropout_cause.WAYS)
    for run in runs.values():
        assert run["made"]["device"].startswith("cpu")
        if run["way"] == "plain":
            assert run["looks"]["epochs"] == []
            continue
        assert all(0.5 < ratio < 2 for layers in run["looks"]["ratio"] for ratio in layers)
        assert all(len(layers) == 4 for layers in run["looks"]["ratio"])  # nothing is random before the first layer
        for part in ("training", "validation"):
            by_draws, mean = (run["looks"][part][name] for name in ("loss by draws", "mean loss of draws"))
            assert all(a < b for a, b in zip(by_draws, mean, strict=True))  # by Jensen's inequality
    assert "joint covariance (1 epoch)" in result.markdown
    assert "Not complete" not in result.markdown


def test_runs_are_not_made_again(quick, monkeypatch, tmp_path):
    options, folder, result = quick
    monkeypatch.setattr(dropout_cause, "_trained", None)
    assert dropout_cause.run(folder, options).data == result.data
    elsewhere = dataclasses.replace(options, runs=tmp_path / "runs", missing=True)
    assert dropout_cause.run(folder, elsewhere).data == result.data  # from the results
    stopped = dropout_cause.run(tmp_path, dataclasses.replace(elsewhere, minutes=0.0))
    assert "Not complete: 0 of 7 runs are done" in stopped.markdown


def test_a_cpu_reads_the_runs_of_a_gpu_and_makes_none(quick, monkeypatch, tmp_path):
    options, _, result = quick
    elsewhere = dataclasses.replace(options, quick=False, minutes=0.0, runs=tmp_path / "runs")
    assert list(dropout_cause.run(tmp_path, elsewhere).data["networks"]) == ["deep-mlp"]
    subject, runs = dropout_cause.ON_GPU["cifar"], result.data["networks"]["deep-mlp"]["runs"]
    _, config = subject.runs("cuda")["plain-0"]
    found = {**runs["plain-0"], "command": config.command, "looks": {}}
    file = elsewhere.runs_of(dropout_cause.NAME) / "cifar-plain-0.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"of": dropout_cause._of(config, subject), "run": found}))
    monkeypatch.setattr(dropout_cause, "_trained", None)
    told = dropout_cause.run(tmp_path, elsewhere)
    assert list(told.data["networks"]["cifar"]["runs"]) == ["plain-0"]
    assert "Not complete: 1 of 6 runs are done" in told.markdown


def test_a_look_at_one_layer_of_dropout_agrees_with_ap2():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3)).requires_grad_(False)
    images = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    found = Look(images=4, losses=4, units=50, draws=4000, predicting=4000).at(model, images, images)
    assert model.training
    assert found["layers"]["1"]["ratio"] is None
    assert found["layers"]["3"]["ratio"] == pytest.approx(1, abs=0.02)  # units are independent
    assert found["training"] == found["validation"]
    exact = momentprop.propagate(model.eval(), images[0], dropout=True)
    posterior = momentprop.functional.class_posterior(exact, -1).logits
    truth = torch.nn.functional.nll_loss(posterior, images[1]).item()
    assert found["training"]["loss by draws"] == pytest.approx(truth, abs=0.02)


def test_the_correlation_is_that_beyond_chance():
    torch.manual_seed(0)
    one = torch.randn(2000, 3, 1, dtype=torch.float64)
    assert _correlation(torch.cat([one, one], -1)) == pytest.approx(1, abs=1e-3)
    assert _correlation(torch.randn(2000, 3, 8, dtype=torch.float64)) < 0.02
    mixed = torch.cat([one, 0.6 * one + 0.8 * torch.randn_like(one)], -1)
    assert _correlation(mixed) == pytest.approx(0.6, abs=0.03)
    assert _correlation(torch.ones(5, 2, 3, dtype=torch.float64)) is None


def test_a_run_counts_up_to_a_time():
    run = {"seconds": [1.0, 2.0, 3.0], "accuracy": [0.5, 0.5, 0.9]}
    assert [_at_time(run, seconds) for seconds in (0.5, 1.0, 2.9)] == [None, 0.5, 0.5]
    assert _at_time(run, 10.0) == pytest.approx(0.7)
