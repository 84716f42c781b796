"""Many runs: they stop in time, resume, and run side by side."""

import json
import subprocess
import time

import pytest

from momentprop.errors import UserError
from momentprop_experiments.options import Options
from momentprop_experiments.runs import schedule
from momentprop_experiments.runs.config import Config


def test_runs_stop_in_time_and_go_on_from_their_checkpoints(tmp_path, monkeypatch):
    started = []

    def run(command, timeout, **_):
        started.append((command, timeout))
        if len(started) == 2:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    times = iter([0.0, 0.0, 30.0, 61.0])
    monkeypatch.setattr(schedule.time, "monotonic", lambda: next(times))
    wanted = {name: Config(network="mlp", seed=seed) for seed, name in enumerate(("a", "b", "c"))}
    assert schedule.complete(wanted, tmp_path, Options(minutes=1)) == ["b", "c"]
    assert [timeout for _, timeout in started] == [60.0, 30.0]
    assert all("--resume" in command for command, _ in started)


def test_an_experiment_says_how_many_runs_are_left_undone(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "_side_by_side", lambda missing, *_: list(missing)[1:])
    wanted = {name: Config(network="mlp", seed=seed) for seed, name in enumerate(("a", "b", "c"))}
    with pytest.raises(UserError, match="2 of 3 runs are not done; run the same command again"):
        schedule.complete_all(wanted, tmp_path, Options(minutes=1))


def test_runs_side_by_side_end_in_time(tmp_path, monkeypatch, capsys):
    script = "import json, pathlib, time; p = pathlib.Path({!r}); p.mkdir()\n"
    script += "(p / 'checkpoint.json').write_text(json.dumps({{'history': [1, 2]}})); time.sleep(60)"
    monkeypatch.setattr(
        schedule, "command", lambda config, place, root: ["timeit", "-n1", "-r1", script.format(str(place))]
    )
    monkeypatch.setattr(schedule, "_LOOK", 0.1)
    counted = []
    monkeypatch.setattr(schedule, "progress", lambda total, title: _Bar(total, counted))
    wanted = {name: Config(network="mlp", epochs=5, seed=seed) for seed, name in enumerate(("a", "b"))}
    started = time.perf_counter()
    assert schedule.complete(wanted, tmp_path, Options(jobs=2, minutes=0.05)) == ["a", "b"]
    assert time.perf_counter() - started < 20
    assert counted[0] == 10
    assert sum(counted[1:]) == 4
    assert sorted(capsys.readouterr().err.splitlines()) == ["a: 2 of 5 epochs", "b: 2 of 5 epochs"]


class _Bar:
    def __init__(self, total, counted):
        counted.append(total)
        self.update = counted.append

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_run_is_done_if_its_settings_are_the_same(tmp_path):
    config = Config(network="mlp", seed=3)
    assert not schedule.is_done(tmp_path, config)
    saved = {
        name: value for name, value in config.as_dict().items() if name != "train_images"
    }  # as an older version wrote it
    (tmp_path / "result.json").write_text(
        json.dumps({"config": {**saved, "device": "cuda"}, "history": [{"epoch": 1}]})
    )
    assert schedule.is_done(tmp_path, config)
    assert schedule.is_done(tmp_path, Config(network="mlp", seed=3, checkpoint_every=7))
    assert not schedule.is_done(tmp_path, Config(network="mlp", seed=3, epochs=7))
    assert not schedule.is_done(tmp_path, Config(network="mlp", seed=4))
    assert schedule.history(tmp_path) == [{"epoch": 1}]
    assert schedule.history(tmp_path / "nowhere") == []


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"config": 3, "history": "x"}', "[" * 100_000])
def test_a_damaged_result_is_named(content, tmp_path):
    (tmp_path / "result.json").write_text(content)
    for read in (lambda: schedule.is_done(tmp_path, Config(network="mlp")), lambda: schedule.history(tmp_path)):
        with pytest.raises(UserError, match=r"result\.json` is damaged: remove the folder of this run"):
            read()
