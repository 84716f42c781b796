"""Calibrated AP2 on held-out images: the measured numbers are those of `check`, and judge the targets."""

import json
import math

import pytest

import momentprop
from momentprop.data import digits
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.calibration import (
    calibration_held_out,
)
from momentprop_experiments.reproduction.calibration.calibration_cases import CASES, TARGETS
from momentprop_experiments.reproduction.calibration.calibration_held_out_report import markdown
from momentprop_experiments.runs import trained_networks

ROOT = results_folder().parent
RESULTS = ROOT / "results" / "paper"


def test_the_figures_are_those_of_check_with_a_calibration(ran):
    found = ran(calibration_held_out.NAME)[0]["cases"]["lenet-dropout"]
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
    assert found["layers"]["modules"][:2] == ["conv2", "conv3"]  # the first one has no noise
    assert found["methods"]["calibrated"]["range_of_eps_std"] == pytest.approx(
        [min(convolutions), max(convolutions)], rel=1e-3
    )


def test_the_text_names_every_case(ran):
    data, text = ran(calibration_held_out.NAME)
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
    data = json.loads(json.dumps(ran(calibration_held_out.NAME)[0]))
    case = next(iter(data["cases"].values()))
    case["targets"] = {"eps_mean": False, "eps_std": True, "layers": True, "rms_log_std": True, "kl": False}
    text = markdown("title", {**data, "cases": {"cifar-lrelu-0.1": case}})
    assert "| missed: eps_mean, KL |" in text
    assert "(≤ 0.09): missed" in text


def test_the_published_table_shows_that_calibration_helps():
    data = json.loads((RESULTS / "calibration.json").read_text())
    assert data["images"] >= 64
    assert list(data["cases"]) == list(CASES)
    for case in data["cases"].values():
        assert case["draws"] >= (6000 if case["network"].startswith(("lenet", "cifar")) else 1000)
        plain, fitted = case["methods"]["ap2"], case["methods"]["calibrated"]
        assert abs(math.log(fitted["eps_std"])) <= abs(math.log(plain["eps_std"]))
        assert case["targets"] is None or fitted["kl"] < plain["kl"]
