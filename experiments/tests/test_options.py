"""The options of an experiment: how much it measures, and where its runs are."""

from pathlib import Path

import pytest
import torch

from momentprop_experiments import options
from momentprop_experiments.options import Options


@pytest.mark.parametrize(
    ("quick", "device", "chosen"), [(True, "cuda", 1), (True, "cpu", 1), (False, "cpu", 2), (False, "cuda", 3)]
)
def test_the_effort_depends_on_quick_and_the_device(quick, device, chosen, monkeypatch):
    monkeypatch.setattr(options, "as_device", torch.device)
    assert Options(quick=quick, device=device).choose(1, 2, 3) == chosen


def test_quick_runs_have_a_folder_of_their_own():
    assert Options(runs=Path("x")).runs_of("dropout") == Path("x/dropout")
    assert Options(runs=Path("x"), quick=True).runs_of("dropout") == Path("x/dropout-quick")
