"""The experiments of data-set statistics and normalization: the truth, the paper's numbers, runs that are kept."""

import importlib.util
import json
import math
import subprocess

import pytest
import torch
from torch import nn

from momentprop.errors import UserError
from momentprop.values import Estimate
from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction import printed_numbers
from momentprop_experiments.reproduction.dataset_statistics import channels, dataset_statistics
from momentprop_experiments.reproduction.normalization import normalization_runs
from momentprop_experiments.runs import schedule

ROOT = results_folder().parent


def test_the_truth_is_over_all_images_and_positions_at_once(monkeypatch):
    monkeypatch.setattr(channels, "AT_ONCE", 7)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))
    images = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = channels.measure(model, images, ["1", "3"])
    with torch.no_grad():
        rectified, output = model[:2](images).double(), model(images).double()
    for path, x in (("1", rectified.transpose(0, 1).flatten(1)), ("3", output.T)):
        torch.testing.assert_close(found[path].loc, x.mean(1))
        torch.testing.assert_close(found[path].variance, x.var(1))


def test_errors_of_channels_leave_constant_channels_out():
    truth = Estimate.of(*torch.tensor([[0.0, 1.0, 5.0], [1.0, 9.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double())
    errors = channels.compare(torch.tensor([0.5, 2.0, 0.0]), torch.tensor([2.0, 12.0, 1.0]), truth)
    assert errors.eps_mean == pytest.approx(0.75 / 2)
    assert errors.eps_std == pytest.approx(math.sqrt(8))
    assert errors.rms_log_std == pytest.approx(math.sqrt((math.log(2) ** 2 + math.log(4) ** 2) / 2))
    assert (errors.constant, errors.zero) == (1, 0)
    unknown = channels.compare(torch.tensor([0.5, 2.0, 0.0]), torch.tensor([0.0, 12.0, 1.0]), truth)
    assert unknown.eps_std == pytest.approx(4)
    assert (unknown.constant, unknown.zero) == (1, 1)


def test_the_printed_statistics_are_those_of_the_paper():
    assert printed_numbers.STATISTICS["lrelu"]["bn"].mean == (0.10, 0.49, 0.13, 0.36, 0.29, 0.52, 0.49)
    assert printed_numbers.STATISTICS["logistic"]["analytic"].std[-1] == 1.21
    for ways in printed_numbers.STATISTICS.values():
        assert all(len(row) == 7 for found in ways.values() for row in (found.mean, found.std))


def test_the_statistics_have_the_papers_figures_beside_them(tmp_path):
    result = dataset_statistics.run(tmp_path, Options(quick=True, device="cpu"))
    assert [file.suffix for file in result.save(tmp_path, "x")] == [".json", ".md", ".png", ".svg"]
    for network in result.data["networks"].values():
        for starts in network["activations"].values():
            for found in starts.values():
                assert len(found["eps_mean"]) == len(found["eps_std"]) == len(network["columns"])
    lenet = result.data["networks"]["lenet"]["activations"]["lrelu"]
    assert max(lenet["analytic"]["eps_mean"]) < 0.7
    assert all(0.6 < factor < 1.4 for factor in lenet["analytic"]["eps_std"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.markdown.splitlines()]
    paper = ["0.10", "0.20", "0.26", "0.25", "0.38", "0.37", "0.38"]
    assert ["analytic initialization: eps_mean, paper", *paper] in rows


def test_all_five_ways_train_and_a_second_call_trains_nothing(tmp_path, monkeypatch, capsys):
    few = {"lenet": normalization_runs._QUICK["lenet"] | {"validation": 0.96, "epochs": 1, "batch_size": 32}}
    monkeypatch.setattr(normalization_runs, "_QUICK", few)
    monkeypatch.setattr("momentprop_experiments.runs.curves.draw_curves", lambda *_: [])  # which are tested elsewhere
    options = Options(quick=True, device="cpu", runs=tmp_path / "runs")
    result = normalization_runs.run(tmp_path, options)
    ways = result.data["networks"]["lenet"]["ways"]
    assert list(ways) == list(normalization_runs.WAYS)
    assert all(found["train_loss"][0] < 2.6 for found in ways.values())
    assert len({found["test"]["loss"] for found in ways.values()}) == 5
    assert "`momentprop train lenet" in result.markdown
    monkeypatch.delattr(schedule, "train")
    assert normalization_runs.run(tmp_path, options).data == result.data


def test_runs_side_by_side_name_the_one_that_fails(tmp_path, monkeypatch):
    started = []

    def run(command, **_):
        started.append(command)
        return subprocess.CompletedProcess(command, returncode=int("bn" in command))

    monkeypatch.setattr(subprocess, "run", run)
    options = Options(runs=tmp_path, root=tmp_path / "data", jobs=4)
    with pytest.raises(UserError, match=r"4 of the training runs failed: read .*cifar-bn-init\.log"):
        normalization_runs.run(tmp_path, options)
    assert len(started) == 10
    (one,) = [command for command in started if str(tmp_path / "normalization" / "plain20-analytic") in command]
    assert one[1:5] == ["-m", "momentprop", "train", "plain20"]
    assert one[one.index("--norm") + 1] == "analytic"
    assert one[one.index("--root") + 1] == str(tmp_path / "data")


def test_the_benchmark_adds_a_device_to_its_table(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("benchmark", ROOT / "benchmarks" / "normalization.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    other = {"torch": "2", "rounds": 1, "steps": 1, "cases": {}}
    (tmp_path / "normalization.json").write_text(json.dumps({"another": other}))
    times = iter([1.0, 2.0, 3.0, 5.0, 0.5] * 10)
    monkeypatch.setattr(benchmark, "stepper", lambda *_: lambda: None)
    monkeypatch.setattr(benchmark, "timed", lambda step, steps: next(times))
    arguments = ["x", "--device", "cpu", "--modes", "eager", "--rounds", "2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    benchmark.main()
    data = json.loads((tmp_path / "normalization.json").read_text())
    assert next(iter(data)) == "another"
    (_, found) = data.values()
    ratios = found["cases"]["AP2, eager"]["ratio"]
    assert {name: quartiles[1] for name, quartiles in ratios.items()} == {
        "batch": 2.0,
        "affine": 3.0,
        "analytic": 5.0,
        "statistics": 2.0,
        "alone": 0.5,
    }
    assert "5.000 (5.000 to 5.000)" in capsys.readouterr().out


@pytest.mark.parametrize("activation", printed_numbers.STATISTICS)
def test_the_published_table_has_errors_of_the_papers_size(activation):
    data = json.loads((ROOT / "results" / "paper" / "dataset-statistics.json").read_text())
    assert data["images"] >= 10_000
    for start, found in data["networks"]["lenet"]["activations"][activation].items():
        if start != "trained":
            assert max(found["eps_mean"]) <= 0.6
            assert 0.6 <= min(found["eps_std"]) < max(found["eps_std"]) <= 1.4


def test_published_curves_show_that_normalized_networks_train():
    networks = json.loads((ROOT / "results" / "paper" / "normalization.json").read_text())["networks"]
    assert list(networks) == ["cifar", "plain20"]
    plain = networks["plain20"]["ways"]
    assert min(plain["none"]["train_loss"][:3]) > 2.3  # that of a guess is log(10), 2.303
    for way in ("bn-init", "analytic-init", "bn", "analytic"):
        assert plain[way]["train_loss"][0] < 2
        assert plain[way]["train_loss"][-1] < plain["none"]["train_loss"][-1] / 2
