"""What is measured, and units that do not vary."""

import pytest
import torch
from torch import nn

from momentprop import Normal, check, propagate
from tests.checking.inputs import X, changed
from tests.networks import mlp

# What is kept of the draws


def test_draws_are_those_of_propagate():
    model = mlp().eval()
    options = {"input_variance": 0.2, "dropout": True, "samples": 200, "seed": 3}
    drawn = propagate(model, X, method="sample", **options)
    shown = check(model, X, **options).examples[1].units[2]
    assert shown.loc == pytest.approx(drawn.loc[1, 2].item(), abs=1e-5)
    assert shown.stddev == pytest.approx(drawn.stddev[1, 2].item(), abs=1e-5)


def test_a_check_is_repeatable_and_leaves_everything_as_it_was():
    model = mlp().eval()
    state = torch.get_rng_state()

    def numbers():
        found = check(model, X, input_variance=0.1, dropout=True, samples=50).to_dict()
        return {name: found[name] for name in ("modules", "posterior", "examples")}

    assert numbers() == numbers()
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training or module._forward_hooks for module in model.modules())


# Units that do not vary


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(x * torch.tensor([1.0, 1.0, 0.0]) + torch.tensor([0.0, -100.0, 1.0]))


def test_units_that_do_not_vary_are_counted_and_left_out():
    report = check(Gate(), torch.zeros(4, 3), input_variance=1.0, samples=400, classes=None)
    module = report["relu"]
    assert (module.units, module.zero) == (12, 8)
    ap2 = module.methods["ap2"]
    assert ap2.zero == 0
    assert ap2.eps_std == pytest.approx(1, abs=0.1)
    assert ap2.eps_mean < 0.15
    assert ap2.coverage["50"] == pytest.approx(0.284, abs=0.05)  # P(0.005 < Z < 0.793) of a standard normal variable


def test_units_that_a_method_takes_for_certain_are_counted():
    blind = changed(lambda y: Normal(y.loc, y.variance * torch.tensor([0.0, 1.0])))
    found = check(nn.Linear(6, 2), X, input_variance=0.1, methods=[("blind", blind)])["output"].methods["blind"]
    assert found.zero == 12
    assert found.eps_std == pytest.approx(1, abs=0.05)
    assert found.coverage["90"] == pytest.approx(0.45, abs=0.02)  # half of the units are covered, half never


def test_nothing_random_is_an_error():
    with pytest.raises(ValueError, match="nothing in the model is random: give an `input_variance`"):
        check(mlp().eval(), X, samples=5)
