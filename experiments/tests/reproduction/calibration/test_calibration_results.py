"""The calibration experiments together: published texts, and the effort of a full run."""

import json

import pytest

from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.calibration import (
    calibration_held_out,
    calibration_posterior,
    calibration_transfer,
)

ROOT = results_folder().parent
RESULTS = ROOT / "results" / "paper"
EXPERIMENTS = (calibration_held_out, calibration_transfer, calibration_posterior)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.NAME)
def test_published_texts_are_those_of_their_numbers(experiment):
    data = json.loads((RESULTS / f"{experiment.NAME}.json").read_text())
    assert (RESULTS / f"{experiment.NAME}.md").read_text(encoding="utf-8") == (
        experiment.markdown(experiment.TITLE, data) + "\n"
    )


def test_an_effort_that_is_full_asks_for_what_the_evidence_needs():
    assert min(calibration_held_out.FULL.draws[kind] for kind in ("lenet", "cifar")) >= 6000
    assert min(calibration_held_out.FULL.draws.values()) >= 1000
    assert calibration_transfer.FULL.counts == (8, 64, 512)
    assert calibration_transfer.FULL.levels == (1e-4, 1e-3, 0.01, 0.1, 1.0)
    assert calibration_posterior.FULL.test >= 2000
    assert calibration_posterior.COUNTS == (8, 32, 128)
