"""Five ways to initialize or normalize a network: all of them train."""

import json
import subprocess

import pytest

from momentprop.errors import UserError
from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.normalization import normalization_runs
from momentprop_experiments.runs import schedule

ROOT = results_folder().parent


def test_all_five_ways_train_and_a_second_call_trains_nothing(tmp_path, monkeypatch, capsys):
    few = {"lenet": normalization_runs._QUICK["lenet"] | {"validation": 0.96, "epochs": 1, "batch_size": 32}}
    monkeypatch.setattr(normalization_runs, "_QUICK", few)
    monkeypatch.setattr("momentprop_experiments.runs.curves.draw_curves", lambda *_: [])  # another test draws them
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
    with pytest.raises(UserError, match=r"4 training runs failed: read .*cifar-bn-init\.log"):
        normalization_runs.run(tmp_path, options)
    assert len(started) == 10
    (one,) = [command for command in started if str(tmp_path / "normalization" / "plain20-analytic") in command]
    assert one[1:5] == ["-m", "momentprop", "train", "plain20"]
    assert one[one.index("--norm") + 1] == "analytic"
    assert one[one.index("--root") + 1] == str(tmp_path / "data")


def test_published_curves_show_that_normalized_networks_train():
    networks = json.loads((ROOT / "results" / "paper" / "normalization.json").read_text())["networks"]
    assert list(networks) == ["cifar", "plain20"]
    plain = networks["plain20"]["ways"]
    assert min(plain["none"]["train_loss"][:3]) > 2.3  # a guess has log(10), 2.303
    for way in ("bn-init", "analytic-init", "bn", "analytic"):
        assert plain[way]["train_loss"][0] < 2
        assert plain[way]["train_loss"][-1] < plain["none"]["train_loss"][-1] / 2
