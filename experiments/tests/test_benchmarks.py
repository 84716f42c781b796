"""The scripts in `benchmarks/`: each adds its measurements to a file of results."""

import importlib.util
import json

import pytest

from momentprop_experiments.repository import results_folder

ROOT = results_folder().parent


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
    assert list(json.loads(file.read_text())["machines"]) == ["cuda", "cpu"]
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
