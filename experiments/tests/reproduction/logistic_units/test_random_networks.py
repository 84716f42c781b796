"""Feed-forward inference in random belief networks against exact sums."""

import json
from pathlib import Path

import pytest
import torch

from momentprop_experiments.options import Options
from momentprop_experiments.reproduction.logistic_units import random_networks


def test_the_comparison_with_the_truth_reports_every_method(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    result = random_networks.run(tmp_path, Options(quick=True))
    result.save(tmp_path, random_networks.NAME)
    data = json.loads((tmp_path / "truth.json").read_text())
    assert len(data["cells"]) == 16
    for row in (data["overall"], *(cell["methods"] for cell in data["cells"])):
        assert set(row) == set(random_networks.METHODS)
        assert row[random_networks.DEFAULT]["kl"]["over_default"] == 0
        assert row["AP1"]["kl"]["mean"] > row[random_networks.DEFAULT]["kl"]["mean"]
    one_layer = [cell["methods"][random_networks.INDEPENDENT]["absolute_error"]["mean"] for cell in data["cells"][:4]]
    assert max(one_layer) < 1e-12  # the units of the input are independent
    assert all(figure.stat().st_size > 10_000 for figure in result.figures)
    assert f"| {random_networks.DEFAULT} " in result.markdown


@pytest.mark.full
def test_the_default_is_on_average_as_good_as_every_paper_method() -> None:
    everything = torch.cat(list(random_networks.measure(15, seed=1).values()))
    assert random_networks.better_than_default(everything) == []
