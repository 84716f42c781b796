"""Attacks that tell whether gradients are masked: what they find, and that nothing is attacked twice."""

import json

import pytest
import torch

from momentprop_experiments.attacks import by_means, restarted_descent
from momentprop_experiments.options import Options
from momentprop_experiments.reproduction.stability import attack_strength
from momentprop_experiments.reproduction.stability.attack_strength_report import _counted


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("momentprop_experiments.runs.curves.draw_curves", lambda *_: [])  # another test draws them
        folder = tmp_path_factory.mktemp("attacks")
        options = Options(quick=True, device="cpu", runs=folder / "runs")
        return options, folder, attack_strength.run(folder, options)


def test_no_network_hides_its_gradients_from_the_attacks(quick):
    _, folder, result = quick
    assert [file.suffix for file in result.save(folder, "x")] == [".json", ".md", ".png", ".svg"]
    found = result.data["networks"]["mlp"]["found"]
    assert len(found) == 8
    for name, runs in found.items():
        assert len(runs) == 2
        for run in runs:
            shares = {attack: level["accuracy"] for attack, (level,) in run["attacks"].items()}
            assert shares["strongest"] == min(shares.values())
            if not name.endswith("sampling"):  # whose draws differ from try to try
                assert shares["descent with restarts"] <= shares["descent"] <= shares["gradient sign"]
            assert shares["gradient sign"] < shares["random signs"] - 0.2
            assert run["large change"] == 0
            assert run["made"]["device"].startswith("cpu")
    assert result.markdown.count("not settled") > 5  # by two seeds


def test_a_second_run_attacks_nothing(quick, monkeypatch):
    options, folder, result = quick
    monkeypatch.delattr(attack_strength.Bench, "_attacked")
    assert attack_strength.run(folder, options).data == result.data
    (file,) = folder.glob("runs/*/batch-norm-1/attacks-AP1.json")
    file.write_text(json.dumps({"of": "another network", "found": {}}))
    with pytest.raises(AttributeError, match="_attacked"):
        attack_strength.run(folder, options)


def test_networks_that_are_not_trained_are_told(tmp_path):
    options = Options(quick=True, device="cpu", runs=tmp_path / "runs", minutes=0.0)
    result = attack_strength.run(tmp_path, options)
    assert result.data == {"networks": {}, "missing": ["mlp"]}
    assert "Not complete: the MLP is not trained or attacked yet" in result.markdown


def test_restarts_begin_at_the_image_and_at_random_points_near_it():
    model = torch.nn.Linear(3, 2).double().requires_grad_(False)
    x, labels = torch.zeros(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    torch.manual_seed(0)
    once, again, other = restarted_descent(by_means(model), x, labels, most=0.5, steps=0, restarts=3)
    assert torch.equal(once, x)
    assert 0 < again.abs().max() <= 0.5
    assert not torch.equal(again, other)


def test_equal_counts_do_not_settle_a_difference_of_less_than_an_image():
    assert _counted([0.01, 0.01, 0.01], images=100).verdict == "not settled"
    assert _counted([0.04, 0.04, 0.04], images=100).verdict == "yes"
