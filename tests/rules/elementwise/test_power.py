"""Powers, and the functions that take a value as lognormal."""

import math
import warnings

import mpmath
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from momentprop import ModelChangeWarning, Normal, set_default_validate_args
from tests import oracle

LOGNORMAL = {  # the operation, and its moments for X = exp(N(m, L))
    "sqrt": (torch.sqrt, lambda m, L: _power(0.5, m, L)),
    "rsqrt": (torch.rsqrt, lambda m, L: _power(-0.5, m, L)),
    "reciprocal": (torch.reciprocal, lambda m, L: _power(-1, m, L)),
    "pow 1.7": (lambda x: x**1.7, lambda m, L: _power(1.7, m, L)),
    "pow -2": (lambda x: x**-2, lambda m, L: _power(-2, m, L)),
    "log": (torch.log, lambda m, L: (m, L)),
    "log2": (torch.log2, lambda m, L: (m / mpmath.log(2), L / mpmath.log(2) ** 2)),
    "log10": (torch.log10, lambda m, L: (m / mpmath.log(10), L / mpmath.log(10) ** 2)),
}
every_lognormal = pytest.mark.parametrize("name", LOGNORMAL)
ignore_model_change = pytest.mark.filterwarnings("ignore::momentprop.ModelChangeWarning")


def _power(p, m, L):
    return mpmath.exp(p * m + p * p * L / 2), mpmath.exp(2 * p * m + p * p * L) * mpmath.expm1(p * p * L)


@every_lognormal
@ignore_model_change
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-10)])
def test_moments_of_a_lognormal_value_with_the_same_mean_and_variance(name, dtype, tolerance):
    function, truth = LOGNORMAL[name]
    mean, variation = torch.meshgrid(
        torch.tensor([1e-8, 1e-3, 0.7, 1.0, 1.001, 30.0, 1e8], dtype=dtype),
        torch.tensor([1e-8, 1e-4, 0.1, 0.2, 1.0, 30.0, 1e4], dtype=dtype),
        indexing="ij",
    )
    variance = (mean * variation) ** 2
    y = function(Normal(mean, variance))
    eps, largest = torch.finfo(dtype).eps, torch.finfo(dtype).max
    for i in np.ndindex(*mean.shape):
        with mpmath.workdps(40):
            mu, v = mpmath.mpf(mean[i].item()), mpmath.mpf(variance[i].item())
            spread = mpmath.log1p(v / mu**2)
            true_mean, true_variance = (float(part) for part in truth(mpmath.log(mu) - spread / 2, spread))
        if max(abs(true_mean), true_variance) > largest or true_variance < torch.finfo(dtype).tiny:
            continue
        sigma = math.sqrt(true_variance)
        assert abs(y.variance[i].item() ** 0.5 / sigma - 1) <= tolerance
        assert abs(y.loc[i].item() - true_mean) <= tolerance * sigma + 8 * eps * abs(true_mean)


@ignore_model_change
def test_log1p_is_the_logarithm_moved_by_one():
    mean, variance = torch.tensor([1e-9, 0.5, 20.0], dtype=torch.float64), torch.tensor(0.02, dtype=torch.float64)
    y, wanted = torch.log1p(Normal(mean, variance)), torch.log(Normal(1 + mean, variance))
    torch.testing.assert_close((y.loc, y.variance), (wanted.loc, wanted.variance))
    assert torch.log1p(Normal(mean[:1], 0.0)).loc == torch.log1p(mean[:1])


@every_lognormal
@ignore_model_change
def test_derivatives_under_the_lognormal_model(name):
    function, _ = LOGNORMAL[name]

    def moments(mean, variance):
        y = function(Normal.of(mean, variance))
        return y.loc, y.variance

    mean = torch.tensor([0.4, 1.0, 7.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.001, 0.3, 20.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(moments, (mean, variance), check_forward_ad=True)
    assert gradgradcheck(moments, (mean, variance))
    certain = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    loc, spread = moments(mean, certain)
    assert torch.equal(loc, function(mean))
    assert torch.equal(spread, torch.zeros(3, dtype=torch.float64))
    (slope,) = torch.autograd.grad(function(mean).sum(), mean)
    torch.testing.assert_close(torch.autograd.grad(spread.sum(), certain)[0], slope**2)
    compiled = torch.compile(moments, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(mean, variance), moments(mean, variance))


@every_lognormal
def test_a_visible_change_of_the_model_warns(name):
    function, _ = LOGNORMAL[name]
    mean = torch.tensor([1.0, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(Normal(mean, 0.15**2))
        function(Normal(mean, 0.0))
        torch.compile(lambda x: function(x), fullgraph=True, backend="eager")(Normal(mean, 1.0))
        set_default_validate_args(False)
        try:
            function(Normal(mean, 1.0))
        finally:
            set_default_validate_args(True)
    with pytest.warns(ModelChangeWarning, match=r"exceed 0\.2 of the mean"):
        function(Normal(mean, 0.25**2))


@pytest.mark.parametrize(
    "function", [torch.log, torch.sqrt, torch.rsqrt, lambda x: x**1.5], ids=["log", "sqrt", "rsqrt", "pow"]
)
def test_a_mean_that_is_not_positive_warns_and_gives_nan(function):
    with pytest.warns(ModelChangeWarning, match="not positive"):
        y = function(Normal(torch.tensor([-1.0, 1.0]), 0.01))
    assert y.loc.isnan().tolist() == y.variance.isnan().tolist() == [True, False]


def test_a_certain_zero_has_a_root_and_no_warning():
    y = torch.sqrt(Normal(torch.tensor([0.0]), 0.0))
    assert (y.loc, y.variance) == (0, 0)


def test_a_negative_value_has_a_reciprocal():
    y, mirrored = (torch.reciprocal(Normal(torch.tensor([mean]), 0.01)) for mean in (-2.0, 2.0))
    torch.testing.assert_close((y.loc, y.variance), (-mirrored.loc, mirrored.variance))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 6])
def test_integer_powers_are_exact(n):
    mean, std = (part.ravel() for part in np.meshgrid([-3.0, -0.2, 0.0, 1.0, 5.0], [1e-3, 0.3, 1.0, 4.0]))
    true_mean, true_variance = oracle.moments(lambda x, fn: x**n + 0 * x, mean, std**2)
    for exponent in (n, float(n)):
        y = torch.pow(Normal(torch.tensor(mean), torch.tensor(std**2)), exponent)
        np.testing.assert_allclose(y.variance.numpy(), true_variance, rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(y.loc.numpy(), true_mean, rtol=1e-9, atol=1e-12)


def test_powers_with_a_random_exponent():
    x = Normal(torch.tensor([-0.7, 0.0, 2.0], dtype=torch.float64), torch.tensor([0.1, 0.0, 0.3], dtype=torch.float64))
    bases = torch.tensor([0.3, 2.0, 5.0], dtype=torch.float64)
    for y, base in ((2.0**x, 2.0), (torch.pow(bases, x), bases), (bases**x, bases)):
        rate = torch.as_tensor(base, dtype=torch.float64).log()
        wanted = torch.exp(Normal(x.loc * rate, x.variance * rate**2))
        torch.testing.assert_close((y.loc, y.variance), (wanted.loc, wanted.variance))

    def moments(base, mean, variance):
        y = torch.pow(base, Normal.of(mean, variance))
        return y.loc, y.variance

    inputs = tuple(part.clone().requires_grad_() for part in (bases, x.loc, x.variance + 0.1))
    assert gradcheck(moments, inputs, check_forward_ad=True)
    assert gradgradcheck(moments, inputs)


def test_powers_without_a_rule_raise():
    x = Normal(torch.tensor([1.0]), 0.01)
    with pytest.raises(TypeError, match="must be a number"):
        x ** torch.tensor([2.0])
    with pytest.raises(TypeError, match="a random base with a random exponent: write"):
        x**x
    for base in (0.0, -1.0, torch.tensor([-1.0])):
        with pytest.raises(ValueError, match="a random exponent needs a positive base"):
            torch.pow(base, x)


def test_real_powers_do_not_overflow_before_their_value_does():
    """The square of the largest term overflowed, and the exponential of half the logarithm. The fuzzer found it."""
    mean, variance = torch.tensor([95509728.0, 1e-8]), torch.tensor([1.7824233770370483, 6.3579372877597962e-09])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, wanted = (Normal(mean.to(dtype), variance.to(dtype)) ** 2.5 for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(found.variance.double(), wanted.variance, rtol=1e-4, atol=0.0)
