"""`docs/paper.md`: what it names exists, and it leaves out no experiment."""

import re
from functools import reduce

import momentprop.belief
import momentprop.nn
import momentprop.paper
import momentprop.training
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.registry import EXPERIMENTS

ROOT = results_folder().parent
TOLD = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8").split("## The examples")[0]
CODE = set(re.findall(r"`([^`\n]+)`", TOLD))


def test_the_names_and_files_exist():
    names = {name for name in CODE if re.match(r"(paper|belief|nn|functional|training)\.", name)}
    assert len(names) > 20
    for name in names:
        reduce(getattr, name.split("."), momentprop)
    for path in (name for name in CODE if re.match(r"(rules|kernels)/", name)):
        assert (ROOT / "src" / "momentprop" / path).exists(), path


def test_every_experiment_with_a_claim_of_the_paper_is_there():
    commands = {name for part in CODE for name in part.split("`, `")}
    ours = {"noisy-inputs", "regression", "calibration-transfer", "calibration-posterior"}
    assert set(EXPERIMENTS) - ours <= commands
