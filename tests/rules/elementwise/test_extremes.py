"""Means and variances at the ends of their ranges: nothing becomes NaN, negative, or infinite too early."""

import math

import pytest
import torch
from torch import Tensor

from momentprop import Normal
from tests.cases import CASES, Case

pytestmark = pytest.mark.filterwarnings("ignore::momentprop.ModelChangeWarning")

_SIZES = (1e38, 1e30, 100.0, 88.8, 50.0, 1e-6, 1e-30)
_MEANS = (-math.inf, math.inf, *_SIZES, *(-size for size in _SIZES), 0.0)
_VARIANCES = (0.0, 1e-30, 1e-12, 1.0, 1e4, 1e30)
_OF_POSITIVE = [Case(op, None) for op in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")]
_OF_POSITIVE += [Case("pow", None, (0.5,)), Case("pow", None, (-1.5,))]

every_extreme = pytest.mark.parametrize("case", [*CASES, *_OF_POSITIVE], ids=lambda case: case.name)
every_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)


def _grid(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    mean, variance = torch.meshgrid(
        torch.tensor(_MEANS, dtype=torch.float64), torch.tensor(_VARIANCES, dtype=torch.float64), indexing="ij"
    )
    mean, variance = mean.to(dtype).flatten(), variance.to(dtype).flatten()
    known = variance.isfinite() & case(mean).isnan().logical_not()
    if case in _OF_POSITIVE:  # other means have no moments: the result is NaN, with a warning
        known = known & (mean > 0)
    return mean[known], variance[known]


@every_extreme
@every_dtype
def test_zero_variance_is_the_plain_function_for_every_mean(case: Case, dtype: torch.dtype) -> None:
    mean = _grid(case, dtype)[0].unique()
    y = case(Normal.of(mean, torch.zeros_like(mean)))
    assert torch.equal(y.loc, case(mean))
    assert torch.equal(y.variance, torch.zeros_like(mean))


@every_extreme
@every_dtype
def test_nothing_is_nan_negative_or_infinite_too_early(case: Case, dtype: torch.dtype) -> None:
    mean, variance = _grid(case, dtype)
    y = case(Normal.of(mean, variance))
    wide = case(Normal.of(mean.double(), variance.double()))
    assert not y.loc.isnan().any()
    assert (y.variance >= 0).all()
    infinite = case(mean).isinf()  # torch's hardswish overflows before its value does
    for found, truth in ((y.loc, wide.loc), (y.variance, wide.variance)):
        overflows = truth.abs() > torch.finfo(dtype).max / (1 + 1e-2)
        assert (found.isfinite() | overflows | infinite | mean.isinf()).all()


@every_extreme
@every_dtype
def test_gradients_are_finite_where_the_moments_are(case: Case, dtype: torch.dtype) -> None:
    mean, variance = _grid(case, dtype)
    y = case(Normal.of(mean, variance))
    wide = case(Normal.of(mean.double(), variance.double()))
    most = torch.finfo(dtype).max ** 0.5  # a derivative may be far larger than the moment
    tame = mean.isfinite() & (wide.loc.abs() < most) & (wide.variance < most) & y.loc.isfinite()
    if case in _OF_POSITIVE:
        tame = tame & (mean > 1e-10)  # the derivatives themselves overflow
    mean, variance = mean[tame].requires_grad_(), variance[tame].requires_grad_()
    y = case(Normal.of(mean, variance))
    for output in (y.loc, y.variance):
        for grad in torch.autograd.grad(output.sum(), (mean, variance), retain_graph=True):
            assert not grad.isnan().any()


@every_dtype
@pytest.mark.parametrize("variance", [0.0, 1e-3])
def test_masked_scores_have_a_plain_exponential_and_zero_gradients(dtype: torch.dtype, variance: float) -> None:
    mean = torch.tensor([0.5, -math.inf], dtype=dtype, requires_grad=True)
    spread = torch.full_like(mean, variance, requires_grad=True)
    y = torch.exp(Normal.of(mean, spread))
    assert y.loc[1] == 0
    assert y.variance[1] == 0
    for output in (y.loc, y.variance):
        for grad in torch.autograd.grad(output.sum(), (mean, spread), retain_graph=True):
            assert grad[1] == 0
            assert grad.isfinite().all()


def test_a_small_variance_does_not_overflow_before_its_value() -> None:
    y = torch.exp(Normal(torch.tensor([50.0]), 1e-20))
    torch.testing.assert_close(y.variance.double(), torch.tensor([math.exp(100.0) * 1e-20]).double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("compiled", [False, True])
def test_certain_values_stay_certain_in_products_and_quotients(compiled: bool) -> None:
    def softmax(x: Normal) -> Normal:
        weight = x.masked_fill(torch.tensor([False, False, True]), -math.inf).exp()
        return weight / weight.sum(-1, keepdim=True)

    run = torch.compile(softmax, backend="aot_eager") if compiled else softmax
    loc = torch.tensor([50.0, 49.0, 1.0])
    y = run(Normal(loc, 0.0))
    torch.testing.assert_close(y.loc, torch.tensor([*torch.softmax(loc[:2], 0), 0.0]))
    assert torch.equal(y.variance, torch.zeros(3))


def test_a_product_does_not_overflow_before_its_value() -> None:
    big, small = Normal(torch.tensor([1e25]), 1e-20), Normal(torch.tensor([1e-25]), 1e-60)
    assert torch.isfinite((big * small).variance).all()
    assert (Normal(torch.tensor([1.0]), 0.0) / 1e-25).variance == 0
