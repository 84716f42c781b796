"""The scripts in `benchmarks/`: each adds its measurements to a file of results."""

import argparse
import importlib
import importlib.util
import json

import pytest
import torch

from momentprop_experiments.repository import results_folder

ROOT = results_folder().parent


def is_provenance(made):
    return made["device"].startswith("cpu (") and made["seconds"] >= 0 and {"commit", "versions"} <= set(made)


@pytest.fixture
def benchmark():
    spec = importlib.util.spec_from_file_location("calibration_benchmark", ROOT / "benchmarks" / "calibration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_adds_a_machine_to_those_in_its_file(benchmark, tmp_path, monkeypatch):
    def work(count):
        return lambda: sum(range(count))

    runs = {"plain": work(1000), "AP2": work(8000), "calibrated": work(8000)}
    found = benchmark._ratios(runs, rounds=5, seconds=5.0)
    assert found["rounds"] == 5
    assert found["AP2 / plain network"][1] > 2
    del runs["plain"]
    assert "AP2 / plain network" not in benchmark._ratios(runs, rounds=5, seconds=5.0)
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps({"machines": {"cuda": {"machine": "a GPU", "runs": {"eager, batch 1": found}}}}))
    measured = {"machine": "a CPU", "runs": {"eager, batch 1": found}}
    monkeypatch.setattr(benchmark, "measure", lambda *_: measured)
    monkeypatch.setattr("sys.argv", ["calibration.py", "--device", "cpu", "--out", str(tmp_path)])
    benchmark.main()
    machines = json.loads(file.read_text())["machines"]
    assert list(machines) == ["cuda", "cpu"]
    assert is_provenance(machines["cpu"]["made"])
    text = file.with_suffix(".md").read_text()
    assert "| a GPU " in text
    assert "| a CPU " in text


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
    assert list(found["made"]) == list(found["cases"]) == ["standard, eager", "AP2, eager"]
    assert all(is_provenance(made) for made in found["made"].values())
    ratios = found["cases"]["AP2, eager"]["ratio"]
    assert {name: quartiles[1] for name, quartiles in ratios.items()} == {
        "batch": 2.0,
        "affine": 3.0,
        "analytic": 5.0,
        "statistics": 2.0,
        "alone": 0.5,
    }
    assert "5.000 (5.000 to 5.000)" in capsys.readouterr().out


def test_the_benchmark_of_a_step_has_the_papers_ratios(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("training_step", ROOT / "benchmarks" / "training_step.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    chosen, times = [], iter([1.0] * 4 + [2.0, 3.0, 5.0, 9.0] * 2)
    monkeypatch.setattr(benchmark, "stepper", lambda *choice: chosen.append(choice))
    monkeypatch.setattr("normalization.timed", lambda step, steps: next(times))
    arguments = ["x", "--device", "cpu", "--modes", "compiled", "--rounds", "2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    benchmark.main()
    assert chosen[0] == ("standard", "none", "compiled", "cpu")
    assert chosen[3] == ("AP2", "analytic", "compiled", "cpu")
    (found,) = json.loads((tmp_path / "training-step.json").read_text()).values()
    assert is_provenance(found["made"]["compiled"])
    ratios = found["cases"]["compiled"]["ratio"]
    assert {name: quartiles[1] for name, quartiles in ratios.items()} == {
        "BN": 1.5,
        "AP2": 2.5,
        "AP2 with analytic norm": 4.5,
    }
    assert "4.500 (4.500 to 4.500)" in capsys.readouterr().out


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def test_a_step_that_the_compiler_gives_up_is_an_error_and_not_measured_eagerly(load):
    compiled = torch.compile(lambda x, how: x * len(how), backend="eager")
    steps = {"changing": lambda: [compiled(torch.ones(2), "x" * number) for number in range(20)]}
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        load("normalization").taken_in_turns(steps, argparse.Namespace(steps=1, rounds=1))


def test_speed_adds_its_groups_to_the_table_of_a_device(load, tmp_path, monkeypatch, capsys):
    speed = load("speed")
    monkeypatch.setattr("sys.argv", ["x", "--device", "cpu", "--quick", "--only", "ap1", "--out", str(tmp_path)])
    speed.main()
    monkeypatch.setattr("sys.argv", ["x", "--device", "cpu", "--quick", "--only", "tiny", "--out", str(tmp_path)])
    speed.main()
    (found,) = json.loads((tmp_path / "speed.json").read_text()).values()
    assert list(found["cases"]) == ["ap1", "tiny"]
    assert not [case for cases in found["cases"].values() for case in cases.values() if "failed" in case]
    assert {"torch", "python", "commit", "threads"} <= set(found)
    assert list(found["made"]) == ["ap1", "tiny"]
    assert all(is_provenance(made) for made in found["made"].values())
    assert "| max_pool2d " in capsys.readouterr().out


@pytest.mark.parametrize("group", ["forward", "backward", "methods", "bfloat16", "sample", "calibrated", "repeated"])
def test_every_eager_group_of_speed_runs(load, group):
    speed, groups = load("speed"), load("speed_groups")
    clock = load("turns").Clock(rounds=3, seconds=0.0, turn=0.0, warm_up=1)
    found = speed.measure(group, groups.Setting("cpu", True, clock))
    assert not [case["failed"] for case in found.values() if "failed" in case]
    assert found or group == "repeated"


def test_a_case_of_speed_that_fails_says_why_and_shows_its_target(load):
    speed = load("speed")

    def case():
        raise RuntimeError("out of memory")

    found = {**speed._tried(case), "target": 3.0}
    assert speed._cells(found)[:2] == ["<= 3", "RuntimeError: out of memory"]


def test_the_targets_of_speed_stand_beside_what_is_measured(load):
    speed = load("speed")
    case = {"measured": [1.0, 2.0, 3.0], "target": 2.5, "rounds": 5, "milliseconds": [0.5, 1500.0]}
    assert speed._cells(case) == ["<= 2.5", "2 (1 to 3)", "500 µs", "1.5 s", "5"]


def test_contenders_take_turns_and_ratios_are_those_within_a_round(load):
    turns = load("turns")
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    rounds = turns.take_turns(runs, turns.Clock(rounds=4, seconds=0.0, turn=0.0, warm_up=1))
    assert order == list("ab") * 2 + ["a", "b", "b", "a", "a", "b"]
    assert len(rounds) == 3
    found = turns.ratio([{"a": 2.0, "b": 1.0}, {"a": 40.0, "b": 10.0}, {"a": 3.0, "b": 1.0}], "a", "b")
    assert found["measured"][1] == 3.0
    assert found["milliseconds"] == [3000.0, 1000.0]


def test_a_sweep_of_sizes_has_times_of_both(load):
    scaling, groups = load("scaling"), load("speed_groups")
    found = scaling.sweep("depth", groups.setting("cpu", quick=True))
    assert list(found) == ["1", "4"]
    assert all(len(case["milliseconds"]) == 2 for case in found.values())


def test_the_peak_memory_of_a_run_counts_what_lives_at_once(load):
    x = torch.zeros(1000, 1000)
    peak = load("peak_memory").peak(lambda: ((x + 1) * 2 + 3).sum(), "cpu")
    assert 8e6 <= peak < 8.1e6


def test_contenders_that_need_no_package_are_near_the_truth(load):
    peers, contenders = load("peers"), load("peer_contenders")
    torch.manual_seed(0)
    model = peers.he_initialized(peers.small_mlp()).requires_grad_(False)
    x = torch.randn(4, 16)
    with torch.no_grad():
        truth = peers.drawn_truth(model, x, 4000)
        errors = {
            name: peers.figures(contenders.CONTENDERS[name](model, x)(x), truth)
            for name in ("momentprop AP1", "momentprop AP2", "momentprop joint", "1000 draws", "Jacobian", "unscented")
        }
    assert max(each["eps_mean"] for each in errors.values()) < 0.6
    assert all(0.8 < each["sigma"] < 1.3 for each in errors.values() if "sigma" in each)
    assert errors["momentprop joint"]["kl"] < errors["momentprop AP1"]["kl"]
    assert errors["Jacobian"]["eps_mean"] == errors["momentprop AP1"]["eps_mean"]


def test_a_package_that_is_missing_is_named_in_the_table(load, monkeypatch):
    peers = load("peers")

    def absent(model, fit):
        raise ImportError("no such package")

    monkeypatch.setattr(peers, "CONTENDERS", {"absent": absent})
    solvers, missing = peers.made(peers.small_mlp(), torch.zeros(1, 16))
    assert not solvers
    about = {"torch": "2", "python": "3", "commit": "c", "processor": "p", "threads": 1, "networks": {"MLP": missing}}
    assert "ImportError: no such package" in peers.markdown(about)


def test_the_front_page_shows_the_numbers_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    front = importlib.import_module("front")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert front.text() in page
    assert page.count("<!-- trained networks -->") == page.count("<!-- end -->") == 1


ROW = ["MLP", "1", "0.1", "1e-7", "1e-8", "0.2", "19"]


@pytest.mark.parametrize(
    ("name", "arguments", "replaced"),
    [
        ("absorbed_softmax", ["--draws", "20000"], {"CLASSES": (2,), "INSTANCES": 1}),
        ("calibration_trials", [], {"measure": lambda _: {}, "report": lambda _: ""}),
        ("class_probabilities", [], {"rows": lambda: iter([ROW])}),
        ("correlation", ["--device", "cpu", "--items", "1"], {"costs": lambda *_: dict.fromkeys("abc", 1.0)}),
        ("peers", ["--quick"], {"measure": lambda *_: {}}),
        ("scaling", ["--quick", "--scale", "--device", "cpu"], {"sweep": lambda *_: {}, "plot": lambda *_: None}),
        ("weights", ["--quick"], {"measure": lambda *_: {}, "markdown": lambda _: "", "plot": lambda *_: None}),
    ],
)
def test_a_benchmark_says_where_its_numbers_come_from(name, arguments, replaced, load, tmp_path, monkeypatch):
    module = load(name)
    for attribute, value in replaced.items():
        monkeypatch.setattr(module, attribute, value)
    if name == "class_probabilities":
        monkeypatch.setattr(module, "OUT", tmp_path / name)
    elif name == "correlation":
        monkeypatch.setattr(module, "COLUMNS", "abc")
        arguments = [*arguments, "--folder", str(tmp_path)]
    else:
        arguments = [*arguments, "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["x", *arguments])
    threads = torch.get_num_threads()
    (load("speed") if name == "scaling" else module).main()
    torch.set_num_threads(threads)
    (file,) = tmp_path.glob("*.json")
    assert list(records(json.loads(file.read_text())))


def records(data):
    """Yield every provenance that is somewhere in the data."""
    if isinstance(data, dict):
        if "seconds" in data and is_provenance(data):
            yield data
        for part in data.values():
            yield from records(part)


def test_the_prices_of_the_front_page_say_where_they_come_from(load, tmp_path, monkeypatch):
    front = load("front")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "README.md").write_text("")
    for attribute, value in {"RESULTS": tmp_path, "README": tmp_path / "README.md"}.items():
        monkeypatch.setattr(front, attribute, value)
    for attribute, value in {"prices": lambda _: {}, "draw": lambda *_: [], "text": lambda: ""}.items():
        monkeypatch.setattr(front, attribute, value)
    monkeypatch.setattr("sys.argv", ["x"])
    mode = front.programs.mode()
    front.main()
    front.programs.set_mode(mode)
    assert is_provenance(json.loads((tmp_path / "benchmarks" / "front.json").read_text())["made"])


@pytest.mark.parametrize(
    ("commit", "shown"), [("0123456789", "0123456"), ("0123456789, with changes", "0123456-dirty"), (None, "unknown")]
)
def test_a_table_names_the_commit_shortly(commit, shown, load, monkeypatch):
    turns = load("turns")
    monkeypatch.setattr(turns.provenance, "commit", lambda: commit)
    assert turns.about()["commit"] == shown
