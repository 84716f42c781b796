"""Analytic dropout: the runs begin at one point, are kept, stop in time, and are told as far as they go."""

import importlib.util
import json
import subprocess
import time

import pytest
import torch

from momentprop.errors import UserError
from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.dropout import dropout
from momentprop_experiments.reproduction.dropout.dropout_figure import WINDOW, plot, running, with_dropout
from momentprop_experiments.reproduction.dropout.dropout_report import answers, markdown, summary
from momentprop_experiments.runs import schedule
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import build, load_data, split

ROOT = results_folder().parent
RESULTS = ROOT / "results" / "paper"


def test_the_published_curves_are_those_of_the_present_runs():
    published = json.loads((RESULTS / "dropout.json").read_text())["networks"]
    cases = dropout.cases(Options(device="cpu"))
    assert list(cases) == list(published) == ["lenet", "cifar"]
    for network, group in cases.items():
        commands = {name: run["command"] for name, run in published[network]["runs"].items()}
        assert {name: config.command for name, config in group.items()} == commands
    assert all(config.epochs == 60 and config.norm != "bn" for config in cases["cifar"].values())
    assert all(config.train_images == 1000 for config in cases["lenet"].values())


def test_every_way_has_seeds_of_the_plain_training():
    for group in dropout.cases(Options()).values():
        seeds = {}
        for config in group.values():
            seeds.setdefault((dropout._way(config), config.dropout), set()).add(config.seed)
        assert seeds.pop(("plain", 0.0)) == {0, 1, 2}
        ways = ("sampled", "analytic", "analytic-norm", "analytic-expected")
        assert seeds == {(way, p): few for way in ways for p, few in ((0.2, {0}), (0.3, {0, 1, 2}))}
        assert len(group) == 3 + 4 + 12


def test_all_but_the_normalized_network_begin_at_the_same_point():
    cases = dropout.cases(Options(quick=True, device="cpu"))["lenet"]
    points = {}
    for config in cases.values():
        training, _ = split(load_data(config), config)
        points[dropout._way(config)] = build(config, training).state_dict()
    for way in ("sampled", "analytic", "analytic-expected"):
        assert points[way].keys() == points["plain"].keys()
        assert all(torch.equal(points[way][name], points["plain"][name]) for name in points["plain"])
    assert not torch.equal(points["analytic-norm"]["conv1.weight"], points["plain"]["conv1.weight"])


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("momentprop_experiments.runs.curves.draw_curves", lambda *_: [])  # which are tested elsewhere
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
    assert f"| {after_two[0]:.1%}, {after_two[1]:.2f}" in quick.markdown  # beside that of the end, for each way


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
    assert "Not complete: 4 of 5 runs are done" in text
    (told,) = [line for line in text.splitlines() if name in line]
    assert [cell.strip() for cell in told.split("|")[1:3]] == [name, "1 of 2"]
    assert "| sampled dropout" not in text
    assert all(path.exists() for path in plot(tmp_path, "x", data))
    nothing = {"networks": {"lenet": {**network, "runs": {}}}}
    assert "Not complete: 0 of 5 runs are done" in markdown("x", nothing)
    assert all(path.exists() for path in plot(tmp_path, "x", nothing))


def _run(way, p, seed, *accuracies):
    return {"way": way, "dropout": p, "seed": seed, "validation_accuracy": accuracies, "test": {}}


def test_a_claim_is_answered_by_runs_of_the_same_seed():
    done = [_run("plain", 0.0, 0, 0.70, 0.80), _run("plain", 0.0, 1, 0.72, 0.82), _run("plain", 0.0, 2, 0.1, 0.1)]
    done += [_run("analytic", 0.3, 0, 0.90, 0.90), _run("analytic", 0.3, 1, 0.88, 0.88)]
    done += [_run("sampled", 0.3, 0, 0.50, 0.60), _run("sampled", 0.3, 1, 0.50, 0.90)]
    found = {(each.way, each.better, each.other): each for each in answers(done, 1000)}
    gain = found["analytic", "more accurate than", "plain"]
    assert (gain.paper, gain.here, gain.seeds) == ("yes", "yes", "higher for 2 of 2")
    assert gain.by == "+11.3 ± 1.3 points"  # the last figures weigh two thirds
    assert found["sampled", "more accurate than", "plain"].here == "no"
    fast = found["analytic", "as fast as", "plain"]
    assert (fast.here, fast.by) == ("yes", "1 epochs, plain 2")
    assert found["sampled", "as fast as", "plain"].by == "not reached"
    assert "analytic-norm" not in {each.way for each in found.values()}
    text = summary(list(found.values()))
    assert (
        "With p = 0.3, analytic dropout improves the validation accuracy, and does not slow the training down" in text
    )
    few = {(each.way, each.better, each.other): each for each in answers(done, 20)}
    assert few["analytic", "more accurate than", "plain"].here == "no clear difference"
    assert "does not clearly change the validation accuracy" in summary(list(few.values()))


def test_plain_training_is_compared_with_the_same_seeds():
    done = [_run("plain", 0.0, seed, 0.5) for seed in range(3)] + [_run("analytic", 0.2, 1, 0.6)]
    assert [run["seed"] for run in with_dropout(done, 0.2)["plain"]] == [1]


def test_the_running_average_is_that_of_some_epochs():
    assert running([]) == []
    assert running([2.0] * 9) == [2.0] * 9
    impulse = running([0.0] * 50 + [1.0] + [0.0] * 50)
    assert sum(impulse) == pytest.approx(1)
    assert sum(weight**2 for weight in impulse) == pytest.approx(1 / WINDOW)


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
    with pytest.raises(UserError, match="2 of 3 runs are not done: the same command goes on with them"):
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
    saved = {name: value for name, value in config.as_dict().items() if name != "train_images"}  # of an older version
    (tmp_path / "result.json").write_text(
        json.dumps({"config": {**saved, "device": "cuda"}, "history": [{"epoch": 1}]})
    )
    assert schedule.is_done(tmp_path, config)
    assert schedule.is_done(tmp_path, Config(network="mlp", seed=3, checkpoint_every=7))
    assert not schedule.is_done(tmp_path, Config(network="mlp", seed=3, epochs=7))
    assert not schedule.is_done(tmp_path, Config(network="mlp", seed=4))
    assert schedule.history(tmp_path) == [{"epoch": 1}]
    assert schedule.history(tmp_path / "nowhere") == []


def test_few_images_are_chosen_by_the_seed():
    images = load_data(Config())
    everything, validation = split(images, Config())
    few, same = split(images, Config(train_images=100))
    assert (len(few), len(same)) == (100, len(validation))
    assert torch.equal(same.images, validation.images)
    positions = {bytes(image.numpy().tobytes()) for image in everything.images}
    assert all(image.numpy().tobytes() in positions for image in few.images)
    other, _ = split(images, Config(train_images=100, seed=1))
    assert not torch.equal(other.images, few.images)
    assert len(split(images, Config(train_images=100, validation=0))[0]) == 100
    with pytest.raises(UserError, match="there are 4,500 images to train with, but train images is 4501"):
        split(images, Config(train_images=4501))


def test_published_results_say_that_analytic_dropout_helps():
    network = json.loads((RESULTS / "dropout.json").read_text())["networks"]["lenet"]
    found = network["runs"]
    assert len([run for run in found.values() if run["test"]]) == network["wanted"] == 19
    here = {(each.way, each.better, each.other, each.p): each.here for each in answers(found.values(), 1000)}
    for way in ("analytic", "analytic-norm", "analytic-expected"):
        for p in (0.2, 0.3):
            assert here[way, "more accurate than", "plain", p] == here[way, "as fast as", "plain", p] == "yes"
    assert here["sampled", "as fast as", "plain", 0.3] == "no"
    for seed in range(3):
        plain, sampled, analytic = (found[f"lenet-{way}-{seed}"] for way in ("plain", "sampled-0.3", "analytic-0.3"))
        assert analytic["validation_loss"][-1] < sampled["validation_loss"][-1] < plain["validation_loss"][-1]
        assert analytic["validation_accuracy"][0] > sampled["validation_accuracy"][0] + 0.2


def test_the_benchmark_of_a_step_has_the_papers_ratios(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("training_step", ROOT / "benchmarks" / "training_step.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    chosen, times = [], iter([1.0] * 4 + [2.0, 3.0, 5.0, 9.0] * 2)
    monkeypatch.setattr(benchmark, "stepper", lambda *choice: chosen.append(choice))
    monkeypatch.setattr(benchmark, "timed", lambda step, steps: next(times))
    arguments = ["x", "--device", "cpu", "--modes", "compiled", "--rounds", "2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    benchmark.main()
    assert chosen[0] == ("standard", "none", "compiled", "cpu")
    assert chosen[3] == ("AP2", "analytic", "compiled", "cpu")
    (found,) = json.loads((tmp_path / "training-step.json").read_text()).values()
    ratios = found["cases"]["compiled"]["ratio"]
    assert {name: quartiles[1] for name, quartiles in ratios.items()} == {
        "BN": 1.5,
        "AP2": 2.5,
        "AP2 with analytic norm": 4.5,
    }
    assert "4.500 (4.500 to 4.500)" in capsys.readouterr().out
