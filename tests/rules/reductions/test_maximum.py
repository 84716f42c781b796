"""Maxima and max pooling, against the distribution of the maximum integrated in float64."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special
from torch import Tensor

from momentprop import Fitted, Mean, Normal, functional, paper
from momentprop.kernels.maximum import MOST_PAIRS

NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


def _true_moments(mean: np.ndarray, std: np.ndarray) -> tuple[float, float]:
    """Mean and variance of the maximum of independent normal variables, by its density on fine panels."""
    low, high = (mean - 10 * std).max(), (mean + 10 * std).max()
    marks = [m + s * np.linspace(-9, 9, 121) for m, s in zip(mean, std, strict=True)]
    edges = np.unique(np.clip(np.concatenate([np.linspace(low, high, 2001), *marks]), low, high))
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    t = (middle[:, None] + half[:, None] * NODES).ravel()
    z = (t[:, None] - mean) / std
    logs = special.log_ndtr(z)
    density = (np.exp(-0.5 * z * z - logs) / (std * np.sqrt(2 * np.pi))).sum(1) * np.exp(logs.sum(1))
    mass = (half[:, None] * WEIGHTS).ravel() * density
    mass = mass / mass.sum()
    center = (mass * t).sum()
    return center, (mass * (t - center) ** 2).sum()


def _instances(n: int, spread_of_means: float, decades: float, count: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(n)
    return [
        (spread_of_means * rng.normal(size=n), np.sqrt(10 ** (decades * (rng.uniform(size=n) - 0.5))))
        for _ in range(count)
    ]


def _worst(call: Callable[[Normal], Normal], instances: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """The largest error of the mean, in true deviations, and of the deviation, relative."""
    errors = []
    for mean, std in instances:
        truth, variance = _true_moments(mean, std)
        y = call(Normal(torch.tensor(mean), torch.tensor(std**2)))
        errors.append((abs(y.loc.item() - truth) / variance**0.5, abs((y.variance.item() / variance) ** 0.5 - 1)))
    return tuple(map(max, zip(*errors, strict=True)))


@pytest.mark.parametrize(("means", "decades"), [(0.0, 0.0), (1.0, 0.0), (1.0, 2.0), (3.0, 1.0)])
def test_the_maximum_of_two_is_exact(means: float, decades: float) -> None:
    assert max(_worst(lambda x: torch.maximum(x[0], x[1]), _instances(2, means, decades))) < 1e-8


@pytest.mark.parametrize(
    ("n", "means", "decades", "error"),
    [(4, 0.0, 0.0, 0.023), (9, 0.0, 0.0, 0.059), (4, 1.0, 1.0, 0.08), (9, 1.0, 1.0, 0.15), (16, 1.0, 1.0, 0.18)],
)
def test_pairs_have_the_stated_error(n: int, means: float, decades: float, error: float) -> None:
    assert max(_worst(lambda x: x.amax(0), _instances(n, means, decades))) < error


@pytest.mark.parametrize("n", [3, 9, 17, 64])
@pytest.mark.parametrize(("means", "decades"), [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (1.0, 4.0), (5.0, 2.0)])
def test_quadrature_has_the_stated_error(n: int, means: float, decades: float) -> None:
    assert max(_worst(lambda x: functional.maximum_of(x, 0, "quadrature"), _instances(n, means, decades))) < 1e-3


def test_quadrature_copes_with_certain_elements() -> None:
    mean = torch.tensor([0.3, -1.0, 0.1] + [0.0] * 17, dtype=torch.float64)
    variance = torch.tensor([0.0, 0.0, 1.0] + [1.0] * 17, dtype=torch.float64)
    y = Normal(mean, variance).amax(0)
    draws = Normal(mean, variance).sample(200_000, generator=torch.Generator().manual_seed(0)).amax(1)
    assert abs(y.loc.item() - draws.mean().item()) < 5 * (draws.var().item() / len(draws)) ** 0.5
    assert y.variance.item() == pytest.approx(draws.var().item(), rel=0.02)


def test_the_default_is_pairs_up_to_sixteen_and_quadrature_beyond() -> None:
    for n, method in ((MOST_PAIRS, "pairs"), (MOST_PAIRS + 1, "quadrature")):
        x = Normal(torch.linspace(-1, 1, n), 0.5)
        assert torch.equal(x.amax(0).variance, functional.maximum_of(x, 0, method).variance)
    x = Normal(torch.zeros(9), 1.0)
    assert functional.maximum_of(x, 0, "tree").variance.item() < functional.maximum_of(x, 0, "pairs").variance.item()


def test_the_tree_composes_neighbours() -> None:
    x = Normal(torch.tensor([0.0, 1.0, 2.0, -1.0]), torch.tensor([1.0, 2.0, 0.5, 3.0]))
    by_hand = torch.maximum(torch.maximum(x[0], x[1]), torch.maximum(x[2], x[3]))
    tree = functional.maximum_of(x, 0, "tree")
    torch.testing.assert_close(tree.variance, by_hand.variance)
    torch.testing.assert_close(tree.loc, by_hand.loc)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown method 'sort' for a maximum; choose one of 'pairs'"):
        functional.maximum_of(Normal(torch.zeros(3), 1.0), 0, "sort")


@pytest.mark.parametrize("n", [2, 5, 20])
def test_a_maximum_beyond_all_doubt_is_certain_to_be_the_largest(n: int) -> None:
    mean = torch.full((n,), -1e4)
    mean[1] = 7.0
    y = Normal(mean, 2.0).amax(0)
    assert y.loc.item() == pytest.approx(7.0, abs=1e-4)
    assert y.variance.item() == pytest.approx(2.0, rel=1e-3)


def test_covariance_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, c = Normal(torch.tensor(0.3), 2.0), Normal(torch.tensor(-0.2), 0.7), 0.9
    z = functional.max_with_covariance(x, y, c)
    factor = torch.linalg.cholesky(torch.tensor([[2.0, c], [c, 0.7]]))
    draws = torch.tensor([0.3, -0.2]) + torch.randn(400_000, 2, generator=generator) @ factor.T
    largest = draws.amax(1)
    assert abs(z.loc.item() - largest.mean().item()) < 5 * (largest.var().item() / 400_000) ** 0.5
    assert z.variance.item() == pytest.approx(largest.var().item(), rel=0.01)
    assert functional.max_with_covariance(x, x, 2.0).variance.item() == pytest.approx(2.0)


def test_a_value_compared_with_itself_is_itself() -> None:
    x = Normal(torch.zeros(2), 1.0)
    assert torch.maximum(x, x) is x
    assert torch.minimum(x, x) is x


CALLS: dict[str, Callable[[Any], Any]] = {
    "maximum_plain": lambda x: torch.maximum(x, torch.zeros(5)),
    "plain_maximum": lambda x: torch.maximum(torch.zeros(5), x),
    "max_of_two": lambda x: torch.max(x, torch.zeros(5)),
    "minimum": lambda x: torch.minimum(x, torch.zeros(5)),
    "min_of_two": lambda x: torch.min(x, torch.zeros(5)),
    "max_dim": lambda x: x.max(1)[0],
    "max_dim_keepdim": lambda x: x.max(1, keepdim=True).values,
    "min_dim": lambda x: x.min(-1).values,
    "max_of_all": lambda x: x.max(),
    "min_of_all": lambda x: x.min(),
    "amax": lambda x: x.amax((0, 2)),
    "amax_keepdim": lambda x: torch.amax(x, (0, -1), keepdim=True),
    "amin": lambda x: x.amin(1),
    "maximum_of": lambda x: functional.maximum_of(x, 2, keepdim=True),
    "maxout": lambda x: functional.maxout(x, 2),
    "max_pool1d": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d_overlap": lambda x: F.max_pool2d(x, 3, 1, 1),
    "max_pool2d_ceil": lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True),
    "max_pool2d_dilation": lambda x: F.max_pool2d(x, (2, 2), (1, 2), (1, 0), (2, 3), True),
    "max_pool2d_module": torch.nn.MaxPool2d(2, 1),
    "max_pool3d": lambda x: F.max_pool3d(x[None], 2, 1, 1),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x[0], 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (4, 3)),
    "adaptive_max_pool2d_none": lambda x: F.adaptive_max_pool2d(x, (None, 2)),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x[None], (1, 4, 2)),
}


def _input() -> Tensor:
    return torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", CALLS)
def test_certain_values_give_the_plain_maximum_and_finite_gradients(name: str) -> None:
    x = _input().requires_grad_()
    variance = torch.zeros_like(x).requires_grad_()
    y = CALLS[name](Normal(x, variance))
    assert torch.equal(y.loc, CALLS[name](x))
    assert torch.equal(y.variance, torch.zeros_like(y.loc))
    grads = torch.autograd.grad(y.loc.sum() + y.variance.sum(), (x, variance))
    assert all(torch.isfinite(grad).all() for grad in grads)
    torch.testing.assert_close(CALLS[name](Mean(x)).loc, y.loc)


@pytest.mark.full  # `tests/stack/test_compile.py` compiles each rule once
@pytest.mark.parametrize(
    "name", ["maximum_plain", "max_dim", "amin", "maxout", "max_pool2d_ceil", "adaptive_max_pool2d"]
)
def test_compiled_maxima_equal_eager_ones(name: str) -> None:
    torch.compiler.reset()
    x = _input()

    def both(mean: Tensor) -> tuple[Tensor, Tensor]:
        y = CALLS[name](Normal(mean, 0.3))
        return y.loc, y.variance

    torch.testing.assert_close(torch.compile(both, fullgraph=True, backend="aot_eager")(x), both(x))


def _window_moments(x: Normal, i: int, j: int) -> tuple[float, float]:
    """By hand: the 3 x 3 window with stride 2 and padding 1 at output (i, j)."""
    rows, columns = range(max(2 * i - 1, 0), min(2 * i + 2, 6)), range(max(2 * j - 1, 0), min(2 * j + 2, 5))
    cells = list(itertools.product(rows, columns))
    window = x.of(*(torch.stack([part[0, 0, r, c] for r, c in cells]) for part in (x.loc, x.variance)))
    y = window.amax(0)
    return y.loc.item(), y.variance.item()


def test_pooling_takes_the_elements_of_its_windows() -> None:
    x = Normal(_input(), torch.rand(2, 4, 6, 5, generator=torch.Generator().manual_seed(2)))
    y = F.max_pool2d(x, 3, 2, 1)
    for i, j in itertools.product(range(3), range(3)):
        mean, variance = _window_moments(x, i, j)
        assert y.loc[0, 0, i, j].item() == pytest.approx(mean, rel=1e-5, abs=1e-6)
        assert y.variance[0, 0, i, j].item() == pytest.approx(variance, rel=1e-4)


def test_pooling_agrees_with_monte_carlo() -> None:
    x = Normal(_input()[:1, :1], 0.5)
    y = F.max_pool2d(x, 3, 2, 1)
    draws = F.max_pool2d(x.sample(50_000, generator=torch.Generator().manual_seed(0))[:, 0], 3, 2, 1)
    assert ((y.loc[0] - draws.mean(0)).abs() / draws.std(0)).max() < 0.02
    assert ((y.variance[0] / draws.var(0)).sqrt() - 1).abs().max() < 0.07


@pytest.mark.parametrize("n", [2, 4, 20])
def test_gradients_of_maxima_are_right(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    mean = torch.randn(3, n, generator=generator, dtype=torch.float64).requires_grad_()
    variance = (torch.rand(3, n, generator=generator, dtype=torch.float64) + 0.2).requires_grad_()

    def moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y = Normal(m, v).amax(1)
        return y.loc, y.variance

    # the window of the quadrature is held fixed, which costs accuracy, not consistency
    tolerance = 1e-6 if n <= MOST_PAIRS else 1e-3
    assert torch.autograd.gradcheck(moments, (mean, variance), atol=tolerance, rtol=1e-3)
    batched = torch.func.vmap(lambda m, v: Normal(m, v).amax(0).variance)(mean, variance)
    torch.testing.assert_close(batched, moments(mean, variance)[1])


@pytest.mark.parametrize("call", [torch.nn.MaxPool2d(2, return_indices=True), torch.nn.AdaptiveMaxPool2d(2, True)])
def test_indices_of_a_random_maximum_are_refused(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="cannot return the indices of random maxima"):
        call(Normal(_input(), 1.0))
    assert Normal(_input(), 1.0).max(1).indices is None


def test_channels_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="4 channels along dimension 1 do not divide into groups of 3"):
        functional.maxout(_input(), 3)


def test_fitted_values_compose_the_papers_pairs_in_a_tree() -> None:
    x = Fitted(torch.tensor([[0.0, 1.0, 2.0, -1.0]]), 1.0)
    level = [paper.max_fitted(x.loc[:, i], x.variance[:, i], x.loc[:, i + 1], x.variance[:, i + 1]) for i in (0, 2)]
    top = paper.max_fitted(*level[0][:2], *level[1][:2])
    y = x.amax(1)
    assert type(y) is Fitted
    torch.testing.assert_close(y.loc, top.mean)
    torch.testing.assert_close(y.variance, top.variance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    x = _input().to(dtype)
    half, single = (F.max_pool2d(Normal(part, 0.25), 2) for part in (x, x.float()))
    assert half.dtype == dtype
    torch.testing.assert_close(half.variance, single.variance.to(dtype))


def test_the_maximum_of_two_holds_its_digits_for_every_size() -> None:
    sizes = torch.tensor([0.0, 1e-8, 1e-4, 0.1, 1.0, 7.0, 1e4, 1e8], dtype=torch.float64)
    grid = torch.meshgrid(torch.cat([-sizes, sizes]), torch.cat([-sizes, sizes]), sizes, sizes, indexing="ij")
    m1, m2, s1, s2 = (part.flatten().float().double() for part in grid)
    v1, v2 = (s1 * s1).float().double(), (s2 * s2).float().double()
    exact = torch.maximum(Normal(m1, v1), Normal(m2, v2))
    single = torch.maximum(Normal(m1.float(), v1.float()), Normal(m2.float(), v2.float()))
    assert (single.variance >= 0).all()
    ok = exact.variance > 1e-10 * torch.maximum(v1, v2)  # otherwise the true value is less than float32 can hold
    assert ((single.variance.double() / exact.variance).sqrt() - 1)[ok].abs().max() < 5e-6
    error = (single.loc.double() - exact.loc).abs() - 1e-6 * exact.loc.abs() - 5e-6 * exact.stddev
    assert error.max() <= 1e-7 * torch.finfo(torch.float32).tiny


@pytest.mark.parametrize(("n", "alike", "any_variances"), [(4, 0.0245, 0.1), (9, 0.059, 0.12), (16, 0.084, 0.13)])
def test_pairs_have_the_stated_error_over_many_draws(n: int, alike: float, any_variances: float) -> None:
    generator = torch.Generator().manual_seed(n)
    for decades, error in ((0.0, alike), (2.0, any_variances), (4.0, any_variances)):
        means = torch.randn(1000, n, generator=generator, dtype=torch.float64)
        variances = 10 ** (decades * (torch.rand(1000, n, generator=generator, dtype=torch.float64) - 0.5))
        x = Normal(means, variances)
        pairs, exact = (functional.maximum_of(x, 1, method) for method in ("pairs", "quadrature"))
        assert ((pairs.variance / exact.variance).sqrt() - 1).abs().max() < error
        assert ((pairs.loc - exact.loc).abs() / exact.stddev).max() < 0.04


@pytest.mark.parametrize("gap", [0.0, 2.0, 4.0, 6.0])
@pytest.mark.parametrize("narrow", [0.1, 1e-2, 1e-4])
def test_quadrature_copes_with_a_narrow_element_above_wide_ones(narrow: float, gap: float) -> None:
    rng = np.random.default_rng(0)
    mean, std = np.r_[gap, rng.normal(size=19)], np.r_[narrow, np.ones(19)]
    assert max(_worst(lambda x: x.amax(0), [(mean, std)])) < 5e-3


@pytest.mark.parametrize("level", [-1.0, 0.5, 2.0, 4.0])
def test_a_certain_element_cuts_the_distribution(level: float) -> None:
    rng = np.random.default_rng(1)
    mean = rng.normal(size=20)
    t = level + np.linspace(0, 12, 400_001)
    survival = -np.expm1(special.log_ndtr(t[:, None] - mean).sum(1))
    first, second = np.trapezoid(survival, t), 2 * np.trapezoid((t - level) * survival, t)
    tensor = torch.tensor(np.r_[level, mean]).requires_grad_()
    y = Normal(tensor, torch.tensor(np.r_[0.0, np.ones(20)])).amax(0)
    assert y.loc.item() == pytest.approx(level + first, abs=1e-5 * (second - first**2) ** 0.5)
    assert y.variance.item() == pytest.approx(second - first**2, rel=1e-5)
    (slope,) = torch.autograd.grad(y.loc, tensor)
    assert slope[0].item() == pytest.approx(1 - survival[0], abs=1e-5)  # the probability that it is the largest
    assert slope.sum().item() == pytest.approx(1.0, abs=1e-5)


def test_equal_certain_elements_share_the_derivative_as_in_torch() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    for values in (torch.maximum(Normal(x[0], 0.0), Normal(x[1], 0.0)).loc, torch.maximum(x[0], x[1])):
        (slope,) = torch.autograd.grad(values.sum(), x)
        assert torch.equal(slope, torch.full((2, 3), 0.5))
