"""Every experiment has its results in the repository."""

import pytest

from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.registry import EXPERIMENTS

RESULTS = results_folder() / "paper"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_results_in_the_repository_are_complete_and_small(name):
    for ending, most in (("json", 150_000), ("md", 40_000), ("png", 150_000), ("svg", 400_000)):
        assert 0 < (RESULTS / f"{name}.{ending}").stat().st_size < most
    assert (RESULTS / f"{name}.md").read_text(encoding="utf-8").startswith(f"# {EXPERIMENTS[name].TITLE}\n")
