"""Expressions of one value are evaluated as one function of it, not as if their parts were independent."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Fitted, Logistic, Normal
from momentprop.kernels.quadrature import quadrature
from momentprop.values.origin import LONGEST

EXPRESSIONS = {
    "x * sigmoid(x)": lambda x: x * torch.sigmoid(x),
    "sigmoid(x) * x": lambda x: torch.sigmoid(x) * x,
    "x * sigmoid(1.702 x)": lambda x: x * torch.sigmoid(1.702 * x),
    "x - tanh(x)": lambda x: x - x.tanh(),
    "x * tanh(softplus(x))": lambda x: x * torch.tanh(F.softplus(x)),
    "gelu by erf": lambda x: 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2))),
    "gelu by tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    "x + x": lambda x: x + x,
    "x - 0.5 x": lambda x: x - 0.5 * x,
    "x / (1 + |x|)": lambda x: x / (1 + x.abs()),
    "maximum(x, 0.1 x)": lambda x: torch.maximum(x, 0.1 * x),
    "minimum(x, tanh(x))": lambda x: torch.minimum(x, x.tanh()),
    "x + 2 relu(-x)": lambda x: torch.add(x, torch.relu(-x), alpha=2),
    "a clone": lambda x: x.clone() * torch.sigmoid(x.contiguous()),
    "x + prelu(x)": lambda x: x + torch.prelu(x, torch.tensor([0.25], dtype=x.dtype)),
    "x + clamp by tensors": lambda x: x + torch.clamp(x, torch.zeros_like(LOC), torch.full_like(LOC, 1e6)),
    "x + clamp by a tensor": lambda x: x + torch.clamp(x, min=torch.zeros_like(LOC)),
    "in place": lambda x: (-2.0 * x).add_(x.tanh()),
    "in place on a copy": lambda x: x * (x * 1.0).sigmoid_(),
}
LOC = torch.linspace(-6, 6, 25, dtype=torch.float64)


@pytest.mark.parametrize("deviation", [0.01, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_expression_has_the_moments_of_the_whole_function(expression, deviation):
    found = expression(Normal(LOC, deviation**2))
    mean, variance, _ = quadrature(expression)(LOC, torch.full_like(LOC, deviation**2))
    spread = variance.sqrt()
    assert ((found.loc - mean).abs() / spread).max() < 1e-5
    assert ((found.stddev - spread).abs() / spread).max() < 1e-5


def test_kinks_away_from_zero_cost_accuracy_but_little():
    x = Normal(LOC, 1.0)
    found, wanted = x * F.relu6(x + 3) / 6, F.hardswish(x)
    assert ((found.loc - wanted.loc).abs() / wanted.stddev).max() < 0.02
    assert ((found.stddev - wanted.stddev).abs() / wanted.stddev).max() < 0.02


def test_zero_variance_gives_the_plain_function():
    for expression in EXPRESSIONS.values():
        found = expression(Normal(LOC, 0.0))
        assert torch.equal(found.loc, expression(LOC))
        assert torch.equal(found.variance, torch.zeros_like(LOC))


def test_different_values_are_independent():
    x, y = Normal(LOC, 1.0), Normal(LOC.clone(), 1.0)
    assert torch.equal((x - y).variance, torch.full_like(LOC, 2.0))
    assert torch.equal((x + torch.sigmoid(y)).variance, 1 + torch.sigmoid(y).variance)


def test_what_mixes_elements_starts_anew():
    layer = nn.Linear(25, 25, dtype=torch.float64)
    x = Normal(LOC, 1.0)
    y = layer(x)
    torch.testing.assert_close((x + y).variance, x.variance + y.variance)


def test_both_halves_of_a_gated_unit_are_followed():
    x = Normal(torch.linspace(-2, 2, 8), 0.5)
    gate, up = x.chunk(2, -1)
    found, wanted = gate * torch.sigmoid(gate) * up, F.silu(gate) * up
    torch.testing.assert_close(found.loc, wanted.loc, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.variance, wanted.variance, rtol=1e-4, atol=1e-6)


def test_parameters_of_an_expression_have_right_gradients():
    def swish(mean, variance, rate):
        x = Normal(mean, variance)
        y = x * torch.sigmoid(rate * x)
        return y.loc, y.variance

    mean = torch.linspace(-2, 2, 5, dtype=torch.float64).requires_grad_()
    variance = torch.linspace(0.0, 2, 5, dtype=torch.float64).requires_grad_()
    for rate in (torch.tensor(1.3), torch.linspace(0.5, 2, 5), torch.ones(1)):
        assert torch.autograd.gradcheck(swish, (mean, variance + 0.1, rate.double().requires_grad_()))


def test_a_stochastic_unit_is_not_a_function_of_its_input():
    from momentprop.functional import logistic_bernoulli

    x = Normal(LOC, 1.0)
    unit = logistic_bernoulli(x)
    torch.testing.assert_close((unit - torch.sigmoid(x)).variance, unit.variance + torch.sigmoid(x).variance)


def test_dropout_is_not_a_function_of_its_input():
    x = Normal(LOC, 1.0)
    noisy = F.dropout(x, 0.5, training=True)
    torch.testing.assert_close((noisy + x).variance, noisy.variance + x.variance)


@pytest.mark.parametrize("write", [lambda y: y[:1].mul_(2.0), lambda y: y.view(-1).add_(1.0)], ids=["slice", "view"])
def test_a_value_written_to_through_a_view_is_its_own_base(write):
    x = Normal(LOC, 1.0)
    y = x * 3.0
    write(y)
    torch.testing.assert_close((y + x).variance, y.variance + x.variance)


def test_a_base_written_to_through_a_view_is_another():
    x = Normal(LOC.clone(), torch.ones_like(LOC))
    y = torch.sigmoid(x)
    x.view(-1).mul_(2.0)
    torch.testing.assert_close((y + x).variance, y.variance + x.variance)


def test_a_value_changed_in_place_keeps_its_base():
    x = Normal(LOC, 1.0)
    y = x.clone()
    y.sigmoid_()
    torch.testing.assert_close((y * x).variance, F.silu(Normal(LOC, 1.0)).variance, rtol=1e-4, atol=1e-7)


def test_a_long_chain_is_cut():
    x = Normal(torch.linspace(-1, 1, 3), 0.1)
    for _ in range(3 * LONGEST):
        x = x + 0.01 * torch.tanh(x)
    assert torch.isfinite(x.variance).all()
    assert x.source.operations <= LONGEST


def test_origins_do_not_outlive_copies_of_a_value():
    y = torch.sigmoid(Normal(torch.zeros(2), 1.0))
    assert y.origin is not None
    assert copy.deepcopy(y).origin is None
    assert pickle.loads(pickle.dumps(y)).origin is None


@pytest.mark.parametrize("family", [Logistic, Fitted])
def test_the_families_keep_their_type(family):
    y = family(LOC, 1.0) * torch.sigmoid(family(LOC, 1.0))
    x = family(LOC, 1.0)
    assert type(x * torch.sigmoid(x)) is family
    assert type(y) is family


def test_half_precision_is_computed_in_full():
    x = torch.linspace(-2, 2, 9)
    found = EXPRESSIONS["x * sigmoid(x)"](Normal(x.bfloat16(), torch.ones(9).bfloat16()))
    wanted = F.silu(Normal(x.bfloat16().float(), 1.0))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.variance.float(), wanted.variance, rtol=1e-2, atol=1e-3)


def test_compiled_equals_eager():
    torch.compiler.reset()
    programs = [EXPRESSIONS[name] for name in ("gelu by tanh", "in place", "a clone", "x / (1 + |x|)")]

    def everything(x):
        y = x * 3.0
        y[:1].mul_(2.0)
        return [program(x) for program in programs] + [y + x]

    x = Normal(LOC, 0.5)
    for found, wanted in zip(
        torch.compile(everything, fullgraph=True, backend="aot_eager")(x), everything(x), strict=True
    ):
        torch.testing.assert_close(found.loc, wanted.loc)
        torch.testing.assert_close(found.variance, wanted.variance)


def test_it_works_under_vmap():
    program = EXPRESSIONS["x * sigmoid(x)"]
    loc, variance = torch.randn(3, 4), torch.rand(3, 4)
    found = torch.func.vmap(lambda m, v: program(Normal(m, v)))(loc, variance)
    wanted = program(Normal(loc, variance))
    torch.testing.assert_close(found.variance, wanted.variance)


def test_slopes_and_bounds_that_are_tensors_are_followed_channel_by_channel():
    """`x + prelu(x)` was a sum of independent terms: a deviation of 0.73 of the right one."""
    slopes = torch.tensor([0.25, -0.5, 2.0], dtype=torch.float64, requires_grad=True)
    x = Normal(torch.randn(4, 3, 2, dtype=torch.float64), torch.rand(4, 3, 2, dtype=torch.float64))
    found = x + F.prelu(x, slopes)
    for channel, slope in enumerate(slopes.tolist()):
        part = Normal(x.loc[:, channel], x.variance[:, channel])
        wanted = part + F.leaky_relu(part, slope)
        torch.testing.assert_close(found.loc[:, channel], wanted.loc)
        torch.testing.assert_close(found.variance[:, channel], wanted.variance)
    (by_slope,) = torch.autograd.grad(found.variance.sum(), slopes)
    assert torch.isfinite(by_slope).all()
    assert (by_slope != 0).all()


def test_a_power_with_a_tensor_as_its_base_is_followed():
    x, base = Normal(LOC / 6, 0.25), torch.full_like(LOC, 1.5)
    found, wanted = x * base**x, x * 1.5**x
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.variance, wanted.variance)
