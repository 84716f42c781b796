"""The logarithm of a sum of exponentials, against the race integrated densely, scalar quadrature and Monte Carlo."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Fitted, Logistic, Mean, MissingRule, Normal, Sample, Statistics


def _log_below(t: np.ndarray, mean: float, std: float) -> np.ndarray:
    """log E exp(-exp(X - t)) by the trapezoidal rule over X."""
    z = np.linspace(-9, 9, max(61, math.ceil(60 * std)))
    density = np.exp(-z * z / 2)
    late = -np.expm1(-np.exp(np.minimum(mean + std * z - t[:, None], 40.0))) @ (density / density.sum())
    return np.log1p(-np.minimum(late, 1 - 1e-16))


def _true(mean: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
    """Mean and variance by the distribution of the largest of X + G, to 1e-12; equal entries are counted."""
    std = np.sqrt(variance)
    low, high = (mean - 9 * std).max() - 4.5, (mean + 9 * std).max() + 36
    t = np.linspace(low, high, math.ceil((high - low) / 0.2))
    cells, counts = np.unique(np.stack([mean, std]), axis=1, return_counts=True)
    late = -np.expm1(sum(count * _log_below(t, *cell) for cell, count in zip(cells.T, counts, strict=True)))
    late[0] /= 2
    step = t[1] - t[0]
    first, second = late.sum() * step, 2 * ((t - low) * late).sum() * step
    # the trapezoidal rule of t - a, which is not flat at the left end, is off by a twelfth of its derivative
    return low + first - np.euler_gamma, second + step**2 / 6 - first**2 - math.pi**2 / 6


Spread = Callable[[np.random.Generator, int], np.ndarray]


def _scaled(scale: float) -> Spread:
    return lambda rng, n: scale * rng.uniform(0.1, 1.9, n)


SPREADS: dict[str, Spread] = {
    **{f"{scale:g}": _scaled(scale) for scale in (1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 100.0)},
    "four decades": lambda rng, n: 10 ** (4 * (rng.uniform(size=n) - 0.5)),
    "half certain": lambda rng, n: np.where(np.arange(n) % 2 == 1, 0.0, 10 ** (4 * (rng.uniform(size=n) - 0.5))),
}


@functools.cache
def _instances(kind: str, n: int) -> list[tuple[np.ndarray, np.ndarray, float, float]]:
    rng = np.random.default_rng([n, *kind.encode()])
    drawn = [(scale * rng.normal(size=n), SPREADS[kind](rng, n)) for scale in (0.3, 2.0)]
    return [(mean, variance, *_true(mean, variance)) for mean, variance in drawn]


def _errors(mean: np.ndarray, variance: np.ndarray, wanted: tuple[float, float], dtype: torch.dtype) -> list[float]:
    """Of the mean, in standard deviations, and of the standard deviation, relative."""
    y = Normal(torch.tensor(mean, dtype=dtype), torch.tensor(variance, dtype=dtype)).logsumexp(-1)
    deviation = math.sqrt(wanted[1])
    return [abs(y.loc.item() - wanted[0]) / deviation, abs(y.stddev.item() / deviation - 1)]


def test_the_oracle_agrees_with_quadrature_in_two_dimensions() -> None:
    z = np.linspace(-9, 9, 121)
    weight = np.exp(-z * z / 2) / np.exp(-z * z / 2).sum()
    f = np.logaddexp(0.7 + math.sqrt(1.3) * z[:, None], -0.2 + math.sqrt(0.4) * z)
    mean = weight @ f @ weight
    expected = (mean, weight @ (f - mean) ** 2 @ weight)
    assert _true(np.array([0.7, -0.2]), np.array([1.3, 0.4])) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("n", [2, 3, 10, 60])
@pytest.mark.parametrize("kind", SPREADS)
def test_independent_elements_have_the_stated_error(kind: str, n: int) -> None:
    for mean, variance, *wanted in _instances(kind, n):
        for dtype in (torch.float64, torch.float32):
            assert max(_errors(mean, variance, (wanted[0], wanted[1]), dtype)) < 3e-4


@pytest.mark.parametrize(("n", "of_mean", "of_deviation"), [(100, 3e-4, 3e-4), (1000, 1e-3, 0.01), (10_000, 0.01, 0.2)])
def test_many_equal_elements_have_the_stated_error(n: int, of_mean: float, of_deviation: float) -> None:
    for v in (1e-3, 0.1, 0.3, 1.0, 1.5, 2.3, 3.7, 7.0, 30.0):
        mean, variance = np.zeros(n), np.full(n, v)
        by_mean, by_deviation = _errors(mean, variance, _true(mean, variance), torch.float32)
        assert by_mean < of_mean
        assert by_deviation < of_deviation


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("ahead", [6, 10])
def test_the_excess_over_a_sure_winner_is_right_to_a_percent(ahead: int, scale: float) -> None:
    rng = np.random.default_rng(ahead)
    mean, variance = math.sqrt(scale) * rng.normal(size=10), scale * 3 ** rng.uniform(-1, 1, 10)
    mean[0] = mean[1:].max() + ahead * max(1, math.sqrt(scale))
    parts = [torch.tensor(part).requires_grad_() for part in (mean, variance)]
    y = Normal(*parts).logsumexp(0).loc
    loss = _true(mean, variance)[0] - mean[0]  # E[-log p] of the probability p of the winner
    assert abs(y.item() - mean[0] - loss) < 0.01 * loss + 1e-11
    by_mean, by_variance = torch.autograd.grad(y, parts)
    assert abs(by_mean.sum() - 1) < 0.01 * loss + 1e-11
    assert -1e-11 < 1 - by_mean[0] < loss  # E[1 - p]
    assert -0.01 * loss - 1e-11 < by_variance[0] < 0.5 * loss + 1e-11  # E[p (1 - p)] / 2


def test_two_elements_are_a_softplus_of_their_difference() -> None:
    z = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    weight = torch.softmax(-z * z / 2, 0)
    for gap in (-8.0, 0.0, 3.0):
        for v in (1e-4, 0.02, 0.5, 4.0, 60.0):
            y = Normal(torch.tensor([gap, 0.0]).double(), torch.tensor([0.75 * v, 0.25 * v]).double()).logsumexp(0)
            exact = (weight * F.softplus(gap + math.sqrt(v) * z)).sum()
            assert abs(y.loc - exact) < 3e-4 * y.stddev


def test_elements_far_apart_and_of_any_variances_agree_with_draws() -> None:
    mean, variance = torch.tensor([0.5, 0.0, -1.0, 0.3]).double(), torch.tensor([1e6, 0.0, 0.5, 4e5]).double()
    draws = Normal(mean, variance).sample(400_000, generator=torch.Generator().manual_seed(0)).logsumexp(-1)
    y = Normal(mean, variance).logsumexp(-1)
    assert abs(y.loc - draws.mean()) < 4 * draws.std() / math.sqrt(400_000)
    assert y.stddev.item() == pytest.approx(draws.std().item(), rel=5e-3)


def test_large_variances_give_the_maximum() -> None:
    mean, variance = torch.tensor([1e4, 0.0, -2e4]).double(), torch.tensor([1e8, 3e8, 2e8]).double()
    y, largest = (getattr(Normal(mean, variance), name)(0) for name in ("logsumexp", "amax"))
    assert y.loc.item() == pytest.approx(largest.loc.item(), abs=200)  # `amax` takes pairs, off by a hundredth
    pair = Normal(mean[:2], variance[:2])
    torch.testing.assert_close(pair.logsumexp(0).loc, pair.amax(0).loc, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(pair.logsumexp(0).stddev, pair.amax(0).stddev, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_variances_give_the_function_and_its_linearization(dtype: torch.dtype) -> None:
    mean = (3 * torch.randn(20, 7, generator=torch.Generator().manual_seed(0))).to(dtype)
    certain = Normal(mean, 0.0).logsumexp(1)
    torch.testing.assert_close(certain.loc, mean.logsumexp(1))
    assert torch.equal(certain.variance, torch.zeros(20, dtype=dtype))
    for v in (1e-30, 1e-12, 1e-6):
        linear = v * mean.softmax(1).square().sum(1)
        torch.testing.assert_close(Normal(mean, v).logsumexp(1).variance, linear, rtol=1e-5, atol=0.0)


def test_certain_elements_have_finite_gradients_which_are_the_softmax() -> None:
    mean = (5 * torch.randn(6, 7, generator=torch.Generator().manual_seed(0))).requires_grad_()
    variance = torch.zeros(6, 7, requires_grad=True)
    y = Normal(mean, variance).logsumexp(1)
    p = mean.detach().softmax(1)
    by_mean, by_variance = torch.autograd.grad(y.loc.sum(), (mean, variance), retain_graph=True)
    torch.testing.assert_close(by_mean, p)
    torch.testing.assert_close(by_variance, 0.5 * p * (1 - p))
    by_mean, by_variance = torch.autograd.grad(y.variance.sum(), (mean, variance))
    assert torch.equal(by_mean, torch.zeros(6, 7))
    torch.testing.assert_close(by_variance, p * p)


def test_one_element_is_itself_and_excluded_ones_do_not_matter() -> None:
    x = Normal(torch.randn(3, 1), torch.rand(3, 1))
    assert torch.equal(x.logsumexp(1).loc, x.loc[:, 0])
    assert torch.equal(x.logsumexp(1).variance, x.variance[:, 0])
    mean, variance = torch.tensor([1.0, -torch.inf, 2.0]), torch.tensor([1.0, 0.0, 2.0])
    for scale in (1e-4, 1.0, 1e6):
        parts = mean.clone().requires_grad_(), (scale * variance).requires_grad_()
        y, z = Normal.of(*parts).logsumexp(0), Normal(mean[::2], scale * variance[::2]).logsumexp(0)
        torch.testing.assert_close((y.loc, y.variance), (z.loc, z.variance), rtol=1e-5, atol=0.0)
        for grad in torch.autograd.grad(y.loc + y.variance, parts):
            assert torch.isfinite(grad).all()
    alone = Normal.of(torch.tensor([-torch.inf, 2.0]), torch.tensor([0.0, 3.0])).logsumexp(0)
    assert alone.loc.item() == pytest.approx(2, abs=1e-3)
    assert alone.variance.item() == pytest.approx(3, rel=1e-3)
    nothing = Normal.of(torch.full((2,), -torch.inf), torch.zeros(2)).logsumexp(0)
    assert nothing.loc == -torch.inf
    assert nothing.variance == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_size_gives_finite_moments_and_gradients(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0, 1e-8, 1e-2, 0.15, 1.899, 1.901, 30, 1e3, 1e8], dtype=dtype)
    a, b, c = (grid.reshape(-1, 1) for grid in torch.meshgrid(sizes, sizes, sizes, indexing="ij"))
    uniform = torch.rand(len(a), 4, generator=generator, dtype=dtype)
    mean = (a * torch.randn(len(a), 4, generator=generator, dtype=dtype)).requires_grad_()
    variance = ((uniform * torch.where(torch.arange(4) < 2, b, c)) ** 2).requires_grad_()
    y = Normal(mean, variance).logsumexp(1)
    assert (y.variance >= 0).all()
    assert (y.variance <= variance.amax(1) * 1.001 + 1e-6).all()
    assert (y.loc >= mean.amax(1) - 1e-3 * y.stddev - 1e-6 * mean.abs().amax(1)).all()
    for result in (y.loc, y.variance):
        assert torch.isfinite(result).all()
        grads = torch.autograd.grad(result.sum(), (mean, variance), retain_graph=True)
        assert all(torch.isfinite(grad).all() for grad in grads)


def _parts(*shape: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return mean.requires_grad_(), (scale * (torch.rand(shape, generator=generator).double() + 0.2)).requires_grad_()


def _moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    y = Normal.of(mean, variance).logsumexp(-1)
    return y.loc, y.variance


@pytest.mark.parametrize("scale", [1e-3, 0.02, 0.3, 1.0, 20.0])
def test_gradients_are_right(scale: float) -> None:
    assert torch.autograd.gradcheck(_moments, _parts(1, 4, scale=scale), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0])
def test_the_derivatives_of_the_mean_are_moments_of_the_softmax(scale: float, dtype: torch.dtype) -> None:
    mean, variance = (part.detach().to(dtype).requires_grad_() for part in _parts(5, 10, scale=scale))
    by_mean, by_variance = torch.autograd.grad(Normal(mean, variance).logsumexp(1).loc.sum(), (mean, variance))
    p = F.softmax(Normal(mean.detach(), variance.detach()), 1)
    torch.testing.assert_close(by_mean, p.loc, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(by_variance, 0.5 * (p.loc * (1 - p.loc) - p.variance), rtol=0.02, atol=1e-4)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_functional_transforms_agree_with_autograd() -> None:
    mean, variance = (part.detach() for part in _parts(3, 4))
    for k in range(2):

        def call(mean: Tensor, variance: Tensor, k: int = k) -> Tensor:
            return _moments(mean, variance)[k]

        torch.testing.assert_close(torch.func.vmap(call)(mean, variance), call(mean, variance))
        reverse, forward = (jac(call, (0, 1))(mean, variance) for jac in (torch.func.jacrev, torch.func.jacfwd))
        torch.testing.assert_close(reverse, forward)
        hessian = torch.func.hessian(lambda m: call(m, variance).sum())(mean)
        torch.testing.assert_close(hessian, hessian.permute(2, 3, 0, 1), rtol=1e-2, atol=1e-3)


CALLS: dict[str, Callable[[Any], Any]] = {
    "dim": lambda x: torch.logsumexp(x, 1),
    "keepdim": lambda x: x.logsumexp(dim=-2, keepdim=True),
    "dims": lambda x: torch.logsumexp(x, (0, -1), True),
    "special": lambda x: torch.special.logsumexp(x, 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_dimensions_are_torchs(name: str) -> None:
    mean, variance = (part.detach() for part in _parts(2, 3, 4))
    assert CALLS[name](Normal(mean, variance)).shape == CALLS[name](mean).shape
    torch.testing.assert_close(CALLS[name](Normal(mean, 0.0)).loc, CALLS[name](mean))


@pytest.mark.full  # `tests/stack/test_compile.py` compiles the rule once
@pytest.mark.parametrize("name", CALLS)
def test_compiled_calls_equal_eager_ones(name: str) -> None:
    torch.compiler.reset()
    mean, variance = (part.detach() for part in _parts(2, 3, 4))

    def moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        value = CALLS[name](Normal(mean, variance))
        return value.loc, value.variance

    compiled = torch.compile(moments, fullgraph=True, backend="aot_eager")(mean, variance)
    torch.testing.assert_close(compiled, moments(mean, variance))


def test_each_type_is_kept_and_draws_take_torchs_function() -> None:
    mean, variance = (part.detach() for part in _parts(3, 4))
    for family in (Logistic, Fitted):
        y = family(mean, variance).logsumexp(1)
        assert type(y) is family
        assert torch.equal(y.loc, Normal(mean, variance).logsumexp(1).loc)
    for kind in (Mean, Sample):
        assert torch.equal(kind(mean).logsumexp(1).loc, mean.logsumexp(1))
    pixel = Statistics.of(mean[:1], variance[:1])
    assert torch.equal(pixel.logsumexp(1).loc, Normal(mean[:1], variance[:1]).logsumexp(1).loc)
    with pytest.raises(MissingRule, match="'logsumexp' along dimension 0"):
        pixel.logsumexp(0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    mean, variance = (part.detach().to(dtype) for part in _parts(3, 4))
    half, single = (Normal(mean.to(kind), variance.to(kind)).logsumexp(1) for kind in (dtype, torch.float32))
    torch.testing.assert_close((half.loc, half.variance), (single.loc.to(dtype), single.variance.to(dtype)))


def test_the_expected_loss_bounds_that_of_the_posterior() -> None:
    mean, variance = (part.detach() for part in _parts(6, 5, scale=3.0))
    x, target = Normal(mean, variance), torch.tensor([0, 1, 2, 3, 4, 0])
    expected = x.logsumexp(1).loc - mean.gather(1, target[:, None]).squeeze(1)
    draws = x.sample(100_000, generator=torch.Generator().manual_seed(0))
    losses = F.cross_entropy(draws.flatten(0, 1), target.repeat(100_000), reduction="none").reshape(-1, 6)
    assert ((expected - losses.mean(0)).abs() < 4 * losses.std(0) / math.sqrt(100_000)).all()
    assert (expected > F.cross_entropy(x, target, reduction="none")).all()
