"""Variances, lengths and angles: against exact integrals and Monte Carlo."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal
from momentprop.rules.reductions.dispersion import cosine_similarity
from tests.rules.reductions.integrals import SCALES, error, monte_carlo, multiplied, tilted, units_of


def exact_root(x: Normal, centred: bool) -> tuple[Tensor, Tensor]:
    """Moments of sqrt(S), whose mean is the integral of (1 - E e^{-tS}) / (2 sqrt(pi) t^{3/2})."""
    t, step = multiplied(x, centred)
    lost = 1 - tilted(x, t, centred)[0]
    root = (lost * t**-0.5).sum(-1) * step / (2 * math.sqrt(math.pi))
    center = x.loc - x.loc.mean(-1, keepdim=True) if centred else x.loc
    share = 1 - 1 / x.shape[-1] if centred else 1.0
    return root, (center * center + share * x.variance).mean(-1) - root * root


@pytest.mark.parametrize("n", [2, 3, 8, 16, 64])
@pytest.mark.parametrize("centred", [True, False])
def test_lengths_and_deviations_are_close(n: int, centred: bool) -> None:
    for kind, scale in itertools.product(("alike", "equal means"), (1e-3, *SCALES)):
        x = units_of(n, scale, kind, groups=8)
        y = torch.std(x, -1, unbiased=False) if centred else x.norm(dim=-1)
        mean, variance = exact_root(x, centred)
        if not centred:
            mean, variance = mean * math.sqrt(n), variance * n
        assert error(y, mean, variance) < (0.08 if n < 16 else 0.02), (kind, scale)


def test_variances_are_exact() -> None:
    x = units_of(7, 1.0)
    y, (v, m) = torch.var(x, -1), torch.var_mean(x, -1)
    mean, variance = monte_carlo(lambda x: x.var(-1), x, 40_000)
    assert ((y.loc - mean).abs() < 5 * (variance / 4e5).sqrt()).all()
    torch.testing.assert_close(y.variance, variance, rtol=0.03, atol=0)
    assert torch.equal(v.variance, y.variance)
    torch.testing.assert_close(m.variance, x.variance.mean(-1) / 7)
    assert math.isnan(torch.var(Normal(torch.zeros(1), 1.0)).loc.item())


@pytest.mark.parametrize(("n", "tolerance"), [(1, 0.0), (2, 0.17), (3, 0.1), (25, 0.05), (200, 0.02)])
@pytest.mark.parametrize("mean", [0.0, 0.5, 3.0])
def test_the_largest_size_is_close(n: int, tolerance: float, mean: float) -> None:
    x = Normal(torch.full((n,), mean, dtype=torch.float64), 1.0)
    t = torch.linspace(0, 12, 12_001, dtype=torch.float64)
    beyond = 1 - (torch.special.ndtr(t - mean) - torch.special.ndtr(-t - mean)) ** n
    wanted = torch.trapezoid(beyond, t)
    variance = torch.trapezoid(2 * t * beyond, t) - wanted**2
    y = torch.linalg.vector_norm(x, math.inf)
    if n > 1:
        assert error(y, wanted, variance) < tolerance
    else:
        torch.testing.assert_close(y.loc, abs(x).loc[0])
        torch.testing.assert_close(y.variance, abs(x).variance[0])


def test_the_largest_size_is_along_dimensions() -> None:
    x = Normal(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), 0.0)
    for dim in (None, 0, -1, (0, 2)):
        for keepdim in (False, True):
            wanted = torch.linalg.vector_norm(x.loc, math.inf, dim, keepdim)
            assert torch.equal(torch.linalg.vector_norm(x, math.inf, dim, keepdim).loc, wanted)


def test_the_norm_of_a_scalar_is_its_size() -> None:
    x = Normal(torch.tensor(-1.0), 0.5)
    for order in (1, 2, math.inf):
        y = torch.linalg.vector_norm(x, order)
        assert torch.equal(y.loc, abs(x).loc)
        assert torch.equal(y.variance, abs(x).variance)


@pytest.mark.parametrize(("n", "tolerance"), [(32, 0.1), (256, 0.06)])
def test_angles_are_close(n: int, tolerance: float) -> None:
    for scale in (0.01, 0.1, 1.0):
        x, y = units_of(n, scale), units_of(n, 1.01 * scale)
        y = y.of(y.loc + x.loc, y.variance)
        pair = Normal(torch.stack([x.loc, y.loc]), torch.stack([x.variance, y.variance]))
        drawn = monte_carlo(lambda z: F.cosine_similarity(z[:, 0], z[:, 1], dim=-1), pair, 100_000 // n)
        assert error(cosine_similarity(x, y, dim=-1), *drawn) < tolerance, scale
        drawn = monte_carlo(lambda z, y=y: F.cosine_similarity(z, y.loc.expand_as(z), dim=-1), x, 100_000 // n)
        assert error(cosine_similarity(x, y.loc, dim=-1), *drawn) < tolerance, scale


def test_norms_that_are_not_known_are_refused() -> None:
    x = Normal(torch.ones(2, 3), 1.0)
    with pytest.raises(ValueError, match="p=1 or p=2"):
        F.normalize(x, p=3)
    with pytest.raises(ValueError, match="orders 1, 2 and inf"):
        torch.linalg.vector_norm(x, 3)
    with pytest.raises(ValueError, match="Frobenius"):
        torch.linalg.norm(x, 2)
