"""Every spelling of an elementwise operation reaches its rule, compiled too."""

import pytest
import torch
from torch import nn

from momentprop import Normal
from tests.cases import CASES
from tests.rules.elementwise.every import benign, every_case, every_kernel


@every_kernel
def test_compiled_equals_eager(case):
    torch.compiler.reset()

    def run(function):
        mean, variance = benign()
        variance.data[-1] = 0.0
        y = function(Normal(mean, variance))
        return y.loc, y.variance, *torch.autograd.grad(y.loc.sum() + 2 * y.variance.sum(), (mean, variance))

    compiled = torch.compile(lambda x: case(x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(compiled), run(case), rtol=1e-10, atol=1e-12)


@every_case
def test_every_spelling_reaches_the_rule(case):
    mean, variance = benign()
    wanted = case(Normal(mean, variance))
    for function in case.spellings():
        y = case(Normal(mean, variance), function)
        assert torch.equal(y.loc, wanted.loc)
        assert torch.equal(y.variance, wanted.variance)


@every_case
def test_every_in_place_spelling_reaches_the_rule(case):
    mean, variance = benign()
    wanted = case(Normal(mean, variance))
    for function in case.spellings("_"):
        x = Normal(mean.detach().clone(), variance.detach().clone())
        assert case(x, function) is x
        assert torch.equal(x.loc, wanted.loc)
        assert torch.equal(x.variance, wanted.variance)


_MODULES = {
    "relu": nn.ReLU(inplace=True),
    "leaky_relu": nn.LeakyReLU(inplace=True),
    "prelu([0.25])": nn.PReLU(),
    "rrelu": nn.RReLU(inplace=True).eval(),
    "threshold(0.5, -1.0)": nn.Threshold(0.5, -1.0, inplace=True),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "softsign": nn.Softsign(),
    "hardtanh": nn.Hardtanh(inplace=True),
    "relu6": nn.ReLU6(inplace=True),
    "hardsigmoid": nn.Hardsigmoid(inplace=True),
    "softplus": nn.Softplus(),
    "logsigmoid": nn.LogSigmoid(),
    "silu": nn.SiLU(inplace=True),
    "mish": nn.Mish(inplace=True),
    "gelu": nn.GELU(),
    "gelu(approximate=tanh)": nn.GELU("tanh"),
    "elu(0.5)": nn.ELU(0.5, inplace=True),
    "selu": nn.SELU(inplace=True),
    "celu(2.0)": nn.CELU(2.0),
    "hardswish": nn.Hardswish(),
    "softshrink": nn.Softshrink(),
    "hardshrink": nn.Hardshrink(),
    "tanhshrink": nn.Tanhshrink(),
}


@pytest.mark.parametrize("name", _MODULES)
def test_modules_reach_the_rule(name):
    case = next(case for case in CASES if case.name == name)
    mean, variance = (part.detach().float() for part in benign())
    y, wanted = _MODULES[name](Normal(mean, variance)), case(Normal(mean, variance))
    assert torch.equal(y.loc, wanted.loc)
    assert torch.equal(y.variance, wanted.variance)
