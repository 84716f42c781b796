"""Normalization by random statistics: against exact integrals and Monte Carlo."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from momentprop import Normal
from tests.rules.reductions.integrals import SCALES, error, exact, monte_carlo, units_of

SIZES = (5, 8, 15, 16, 32, 128, 768)
NORMS: dict[str, tuple[bool, Callable[[Any, int, float], Any]]] = {
    "layer_norm": (True, lambda x, n, eps: F.layer_norm(x, (n,), eps=eps)),
    "rms_norm": (False, lambda x, n, eps: F.rms_norm(x, (n,), eps=eps)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("n", [3, 8, 128])
def test_the_exact_integrals_are_those_of_monte_carlo(name: str, n: int) -> None:
    centred, norm = NORMS[name]
    x, draws, rounds = units_of(n, 1.0), 100_000 // n, 20
    mean, variance = exact(x, centred, 1e-5)
    drawn, drawn_variance = monte_carlo(lambda x: norm(x, n, 1e-5), x, draws, rounds)
    assert ((drawn - mean).abs() < 5 * (variance / draws / rounds).sqrt()).all()
    assert ((drawn_variance / variance - 1).abs() < 5 * math.sqrt(2 / draws / rounds)).all()


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("kind", ["alike", "equal means", "one large mean"])
@pytest.mark.parametrize("n", [n if n < 700 else pytest.param(n, marks=pytest.mark.full) for n in SIZES])
def test_moments_are_the_exact_ones(name: str, kind: str, n: int) -> None:
    centred, norm = NORMS[name]
    for scale in SCALES:
        x = units_of(n, scale, kind)
        assert error(norm(x, n, 1e-5), *exact(x, centred, 1e-5)) < 2e-5, scale


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_moments_of_very_few_units_are_close(name: str, n: int) -> None:
    centred, norm = NORMS[name]
    for kind, scale in itertools.product(("alike", "equal means", "one large mean"), SCALES):
        x = units_of(n, scale, kind, groups=16)
        assert error(norm(x, n, 1e-5), *exact(x, centred, 1e-5)) < (0.1 if n == 2 else 5e-4), scale


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("n", [4, 15, 16, 128])
def test_one_dominant_unit_costs_accuracy_but_not_much(name: str, n: int) -> None:
    centred, norm = NORMS[name]
    for kind, scale in itertools.product(("one large variance", "unequal variances"), SCALES):
        x = units_of(n, scale, kind)
        assert error(norm(x, n, 1e-5), *exact(x, centred, 1e-5)) < (0.1 if n < 16 else 0.3), (kind, scale)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_single_precision_is_enough_at_every_scale(name: str, scale: float) -> None:
    _, norm = NORMS[name]
    for n, spread in itertools.product((8, 15, 16, 128, 768), (1e-8, 1e-4, 0.01, 1.0, 100.0, 1e6)):
        x = units_of(n, spread)
        y = norm(x, n, 1e-5)
        z = norm(Normal((scale * x.loc).float(), (scale**2 * x.variance).float()), n, 1e-5 * scale**2)
        assert ((z.stddev.double() / y.stddev - 1).abs() < 1e-5).all(), (n, spread)
        allowed = 1e-5 * y.stddev + 1e-6 * (y.loc.abs() + x.loc.abs().amax() / (1 + spread) ** 0.5)
        assert ((z.loc.double() - y.loc).abs() < allowed).all(), (n, spread)


@pytest.mark.parametrize("name", NORMS)
def test_half_precision_is_computed_in_single(name: str) -> None:
    _, norm = NORMS[name]
    x = units_of(64, 0.1)
    for dtype in (torch.bfloat16, torch.float16):
        y, z = norm(x, 64, 1e-5), norm(Normal(x.loc.to(dtype), x.variance.to(dtype)), 64, 1e-5)
        assert z.loc.dtype == z.variance.dtype == dtype
        torch.testing.assert_close((z.loc.double(), z.variance.double()), (y.loc, y.variance), rtol=0.05, atol=0.02)
        assert torch.equal(norm(Normal(x.loc.to(dtype), 0.0), 64, 1e-5).loc, norm(x.loc.to(dtype), 64, 1e-5))


def test_nothing_is_undefined_or_negative_in_wild_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    for n, size, spread in itertools.product((1, 2, 15, 40), (0.0, 1e-8, 1e8), (0.0, 1e-8, 1.0, 1e8)):
        for name, certain in itertools.product(NORMS, (0, n - 1)):
            mean = size * torch.randn(5, n, generator=generator)
            mean[0] = size  # equal means
            variance = (spread * torch.rand(5, n, generator=generator)) ** 2
            variance[:, :certain] = 0
            inputs = (mean.requires_grad_(), variance.requires_grad_())
            y = NORMS[name][1](Normal(*inputs), n, 1e-6)
            grads = torch.autograd.grad([y.loc.sum(), y.variance.sum()], inputs)
            assert (y.variance >= 0).all()
            assert all(torch.isfinite(part).all() for part in (y.loc, y.variance, *grads)), (n, size, spread, certain)
