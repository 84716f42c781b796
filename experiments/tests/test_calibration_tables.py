"""The evidence for calibration: what the commands measure is what `check` says, and the targets are judged by it."""

import importlib.util
import json
import math

import pytest
import torch

import momentprop
from momentprop.data import digits
from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction import posterior_scores
from momentprop_experiments.reproduction.calibration import (
    calibration_held_out,
    calibration_posterior,
    calibration_transfer,
)
from momentprop_experiments.reproduction.calibration.calibration_cases import CASES, TARGETS
from momentprop_experiments.reproduction.calibration.calibration_held_out_report import markdown
from momentprop_experiments.reproduction.noisy_networks import Setting
from momentprop_experiments.runs import trained_networks

ROOT = results_folder().parent
RESULTS = ROOT / "results" / "paper"
EXPERIMENTS = (calibration_held_out, calibration_transfer, calibration_posterior)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The numbers and the text of an experiment in quick mode, as its files have them."""
    done = {}

    def read(experiment):
        if experiment not in done:
            out = tmp_path_factory.mktemp(experiment.NAME)
            files = experiment.run(out, Options(quick=True, device="cpu")).save(out, experiment.NAME)
            assert [file.name for file in files] == [f"{experiment.NAME}.{x}" for x in ("json", "md", "png", "svg")]
            done[experiment] = json.loads(files[0].read_text()), files[1].read_text(encoding="utf-8")
        return done[experiment]

    return read


def test_the_figures_are_those_of_check_with_a_calibration(ran):
    found = ran(calibration_held_out)[0]["cases"]["lenet-dropout"]
    model, about = trained_networks.load("lenet-dropout")
    effort = calibration_held_out.QUICK
    train, test = (
        (digits(split).images[: effort.images] - about["mean"][0]) / about["std"][0] for split in ("train", "test")
    )
    fitted = momentprop.calibrate(model, train, dropout=True, samples=effort.samples)
    report = momentprop.check(model, test, dropout=True, samples=20, units=effort.units, calibration=fitted)
    for name, same in (("ap1", "ap1"), ("ap2", "ap2"), ("calibrated", "ap2-calibrated")):
        figures = report.at_output(same)
        assert found["methods"][name]["eps_mean"] == pytest.approx(figures.eps_mean, rel=1e-3)
        assert found["methods"][name]["worth"]["eps_mean"] == pytest.approx(figures.worth_mean, rel=1e-3)
    assert found["methods"]["calibrated"]["eps_std"] == pytest.approx(figures.eps_std, rel=1e-3)
    assert found["methods"]["calibrated"]["coverage"]["90"] == pytest.approx(figures.coverage["90"], rel=1e-3)
    convolutions = [report[f"conv{i}"].methods["ap2-calibrated"].eps_std for i in (2, 3, 4)]
    assert found["layers"]["modules"][:2] == ["conv2", "conv3"]  # nothing is random in the first one
    assert found["methods"]["calibrated"]["range_of_eps_std"] == pytest.approx(
        [min(convolutions), max(convolutions)], rel=1e-3
    )


def test_the_text_names_every_case(ran):
    data, text = ran(calibration_held_out)
    assert text.startswith(f"# {calibration_held_out.TITLE}\n")
    for case in data["cases"].values():
        assert text.count(f"| {case['title']}") == 4
    assert "**Targets**" not in text  # LeNet has none


def _methods(**changes):
    good = {"eps_mean": 0.05, "eps_std": 1.0, "range_of_eps_std": [0.9, 1.05], "rms_log_std": 0.1, "kl": 0.01}
    return {"ap2": {"kl": 0.05}, "calibrated": {**good, **changes}}


@pytest.mark.parametrize(
    ("figure", "bad", "part"),
    [
        ("eps_mean", 0.061, "eps_mean"),
        ("eps_std", 0.94, "eps_std"),
        ("eps_std", 1.06, "eps_std"),
        ("range_of_eps_std", [0.87, 1.0], "layers"),
        ("range_of_eps_std", [0.9, 1.09], "layers"),
        ("rms_log_std", 0.21, "rms_log_std"),
        ("kl", 0.02, "kl"),
    ],
)
def test_a_target_is_missed_in_the_part_that_is_not_reached(figure, bad, part):
    assert all(calibration_held_out.judged(TARGETS["lrelu-0.01"], _methods()).values())
    judged = calibration_held_out.judged(TARGETS["lrelu-0.01"], _methods(**{figure: bad}))
    assert [name for name, met in judged.items() if not met] == [part]


def test_the_targets_are_those_of_five_cifar_cases():
    with_target = {name: case.target for name, case in CASES.items() if case.target is not None}
    assert with_target == {f"cifar-{name}": target for name, target in TARGETS.items()}
    assert len(with_target) == 5


def test_the_verdict_is_in_the_row_and_in_a_table(ran):
    data = json.loads(json.dumps(ran(calibration_held_out)[0]))
    case = next(iter(data["cases"].values()))
    case["targets"] = {"eps_mean": False, "eps_std": True, "layers": True, "rms_log_std": True, "kl": False}
    text = markdown("title", {**data, "cases": {"cifar-lrelu-0.1": case}})
    assert "| missed: eps_mean, KL |" in text
    assert "(≤ 0.09): missed" in text


def test_a_network_that_is_not_in_the_repository_is_left_out(tmp_path):
    setting = Setting(Options(networks=tmp_path, device="cpu"))
    left_out = [name for name, case in CASES.items() if not setting.has(case)]
    assert left_out == ["resnet18-0.01", "resnet18-0.1"]
    (sentence,) = setting.missing(CASES)
    assert sentence.startswith("`resnet18` is left out")
    assert "`momentprop train resnet18 --data cifar10" in sentence
    with pytest.raises(momentprop.errors.UserError, match=r"no `vit\.safetensors`"):
        setting.subject(CASES["vit-0.1"])


def test_a_calibration_of_several_levels_fits_each_level(ran):
    data, text = ran(calibration_transfer)
    (network,) = data["networks"].values()
    assert list(network["matrix"]) == ["0.01", "0.1"]
    for level, found in network["matrix"].items():
        assert list(found) == ["ap1", "ap2", "0.01", "0.1", "several"]
        assert found["several"]["eps_std"] == pytest.approx(found[level]["eps_std"], rel=1e-3)
    assert network["matrix"]["0.01"]["0.1"] != network["matrix"]["0.01"]["0.01"]
    # four images are as many as the matrix is fitted to
    assert network["inputs"]["4 images"] == network["matrix"]["0.1"]["0.1"]
    assert set(network["inputs"]) == {"ap1", "ap2", "2 images", "4 images", "white noise", "statistics"}
    assert text.count("all of these levels") == 1


def test_the_shifts_do_what_their_names_say():
    pixels = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    brighter, flatter, blurred = (shift(pixels) for shift in calibration_transfer.SHIFTS.values())
    assert torch.equal(brighter, torch.minimum(pixels + 0.2, torch.ones(())))
    assert torch.allclose(flatter.mean((1, 2, 3)), pixels.mean((1, 2, 3)))
    assert torch.allclose(flatter.std((1, 2, 3)), 0.5 * pixels.std((1, 2, 3)))
    assert blurred.shape == pixels.shape
    assert blurred.std() < 0.5 * pixels.std()
    assert torch.allclose(calibration_transfer.SHIFTS["blur"](torch.full((1, 1, 6, 6), 0.7)), torch.tensor(0.7))


def test_every_posterior_has_its_scores_and_its_cost(ran):
    data, text = ran(calibration_posterior)
    (case,) = data["cases"].values()
    found = case["methods"]
    names = ["AP1", "AP2", "calibrated AP2", "Monte Carlo, 8", "Monte Carlo, 32", "Monte Carlo, 128", "the truth"]
    assert list(found) == names
    assert [name for name in names if found[name]["forward_passes"] is None] == ["the truth"]
    assert found["Monte Carlo, 128"]["forward_passes"] > 4 * found["Monte Carlo, 8"]["forward_passes"]
    assert found["AP1"]["coverage"] == {}
    assert found["AP1"]["kl"] > found["calibrated AP2"]["kl"] > 0
    assert found["AP2"]["coverage"]["90"] < found["calibrated AP2"]["coverage"]["90"] < 1
    for name in names:
        assert f"| {name} " in text


def test_the_scores_are_those_of_a_plain_sum():
    q = torch.tensor([[0.7, 0.3], [0.7, 0.3], [0.7, 0.3], [0.05, 0.95]])
    labels = torch.tensor([0, 1, 0, 1])
    found = posterior_scores.scores(q.log(), labels)
    assert found["accuracy"] == 0.75
    assert found["nll"] == pytest.approx(-sum(map(math.log, (0.7, 0.3, 0.7, 0.95))) / 4, rel=1e-3)
    assert found["ece"] == pytest.approx((3 * abs(0.7 - 2 / 3) + 0.05) / 4, rel=1e-3)


def test_the_mean_of_many_draws_is_the_truth_of_a_linear_network():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4000, 3, 2, generator=generator)
    told = calibration_posterior._by_draws(draws)
    assert torch.allclose(told.log_q.exp(), draws.softmax(-1).mean(0))
    covered = posterior_scores.coverage(told.logits, torch.randn(4000, 3, 2, generator=generator))
    assert all(abs(covered[f"{100 * level:g}"] - level) < 0.02 for level in posterior_scores.LEVELS)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.NAME)
def test_published_texts_are_those_of_their_numbers(experiment):
    data = json.loads((RESULTS / f"{experiment.NAME}.json").read_text())
    assert (RESULTS / f"{experiment.NAME}.md").read_text(encoding="utf-8") == (
        experiment.markdown(experiment.TITLE, data) + "\n"
    )


def test_the_published_table_shows_that_calibration_helps():
    data = json.loads((RESULTS / "calibration.json").read_text())
    assert data["images"] >= 64
    assert list(data["cases"]) == list(CASES)
    for case in data["cases"].values():
        assert case["draws"] >= (6000 if case["network"].startswith(("lenet", "cifar")) else 1000)
        plain, fitted = case["methods"]["ap2"], case["methods"]["calibrated"]
        assert abs(math.log(fitted["eps_std"])) <= abs(math.log(plain["eps_std"]))
        assert case["targets"] is None or fitted["kl"] < plain["kl"]


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


def test_an_effort_that_is_full_asks_for_what_the_evidence_needs():
    assert min(calibration_held_out.FULL.draws[kind] for kind in ("lenet", "cifar")) >= 6000
    assert min(calibration_held_out.FULL.draws.values()) >= 1000
    assert calibration_transfer.FULL.counts == (8, 64, 512)
    assert calibration_transfer.FULL.levels == (1e-4, 1e-3, 0.01, 0.1, 1.0)
    assert calibration_posterior.FULL.test >= 2000
    assert calibration_posterior.COUNTS == (8, 32, 128)
