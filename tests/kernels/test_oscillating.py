"""Functions that oscillate within a deviation have enough nodes, or a warning."""

import math

import pytest
import torch
import torch.nn.functional as F

from momentprop import Normal
from momentprop.kernels.oscillating import oscillating

WAVES = {
    "x * sin(10 x)": lambda x: x * torch.sin(10 * x),
    "sin(x) * cos(x)": lambda x: torch.sin(x) * torch.cos(x),
    "x + sin(x) ** 2": lambda x: x + torch.sin(x) ** 2,
    "cos(3 x) * relu(x)": lambda x: torch.cos(3 * x) * F.relu(x),
}
CELLS = [(-1.12, 0.263), (8.6, 8.0), (0.0, 1.0), (3.0, 1e-4), (2.0, 40.0)]


def _truth(wave, mean, variance):
    """The moments by a sum over two hundred thousand points, which is exact for smooth functions."""
    z = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    weight = torch.softmax(-0.5 * z * z, 0)
    y = wave(mean + math.sqrt(variance) * z)
    centre = (weight * y).sum()
    return centre, (weight * (y - centre) ** 2).sum().sqrt()


@pytest.mark.parametrize("wave", WAVES.values(), ids=WAVES)
@pytest.mark.parametrize(("mean", "variance"), CELLS)
def test_an_oscillating_expression_has_the_moments_of_the_whole_function(wave, mean, variance):
    found = wave(Normal(torch.tensor([mean], dtype=torch.float64), variance))
    centre, deviation = _truth(wave, mean, variance)
    assert abs(found.loc - centre) < 1e-5 * deviation
    assert abs(found.stddev / deviation - 1) < 1e-5


@pytest.mark.parametrize("wave", WAVES.values(), ids=WAVES)
def test_gradients_are_those_of_the_moments(wave):
    def moments(mean, variance):
        y = wave(Normal.of(mean, variance))
        return y.loc, y.variance

    mean = torch.tensor([-1.12, 0.4, 8.6], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.263, 1.0, 8.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(moments, (mean, variance), atol=1e-5)


@pytest.mark.parametrize("wave", WAVES.values(), ids=WAVES)
def test_compiled_and_mapped_equal_eager(wave):
    torch.compiler.reset()
    x = Normal(torch.tensor([[-1.12, 0.5], [8.6, 2.0]], dtype=torch.float64), 0.5)
    wanted = wave(x)
    compiled = torch.compile(wave, fullgraph=True, backend="aot_eager")(x)
    mapped = torch.func.vmap(wave)(x)
    for found in (compiled, mapped):
        torch.testing.assert_close(found.loc, wanted.loc, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.variance, wanted.variance, rtol=1e-6, atol=1e-8)


def test_what_cannot_be_resolved_is_said():
    x = Normal(torch.tensor([0.3], dtype=torch.float64), 1.0)
    with pytest.warns(UserWarning, match="oscillates too often"):
        y = x * torch.sin(1000 * x)
    assert y.variance.isfinite().all()


def test_only_a_wave_takes_many_nodes(monkeypatch):
    from momentprop.rules.elementwise import expressions

    def never(f):
        raise AssertionError

    monkeypatch.setattr(expressions, "oscillating", never)
    x = Normal(torch.zeros(3), 1.0)
    assert torch.isfinite((x * torch.sigmoid(x)).variance).all()
    with pytest.raises(AssertionError):
        x * torch.sin(x)


def test_zero_variance_is_the_plain_function():
    x = torch.linspace(-3, 3, 7)
    for wave in WAVES.values():
        y = wave(Normal(x, 0.0))
        assert torch.equal(y.loc, wave(x))
        assert torch.equal(y.variance, torch.zeros_like(x))


def test_a_function_without_waves_costs_no_accuracy():
    mean, variance = torch.tensor([0.5], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    found, wanted = oscillating(torch.tanh)(mean, variance), torch.tanh(Normal(mean, variance))
    torch.testing.assert_close(found.mean, wanted.loc, rtol=1e-5, atol=0)
