"""Tests of what probes say of variances, pooled over the units of an item."""

import torch

from momentprop.correlation.pooling import ratio, shrunk, variance_of_draws


def _probes(variance: torch.Tensor, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return variance.sqrt() * torch.randn((count, *variance.shape), generator=generator, dtype=variance.dtype)


def test_the_sum_over_an_item_is_that_of_the_probes() -> None:
    variance = torch.rand(2, 3, 4, 4, dtype=torch.float64) + 0.1
    probes = _probes(5 * variance, 6)
    found = ratio(variance, probes, 0, (1,)) * variance
    torch.testing.assert_close(found.sum((1, 2, 3)), probes.square().mean(0).sum((1, 2, 3)))


def test_items_do_not_cross() -> None:
    variance = torch.ones(2, 3, 4, 4, dtype=torch.float64)
    probes = _probes(variance, 6)
    other = probes.clone()
    other[:, 1] *= 10
    assert torch.equal(ratio(variance, probes, 0, (1,))[0], ratio(variance, other, 0, (1,))[0])


def test_units_that_differ_are_told_apart_better_than_by_raw_ratios() -> None:
    generator = torch.Generator().manual_seed(1)
    truth = (0.4 * torch.randn(4, 8, 6, 6, generator=generator, dtype=torch.float64)).exp()
    truth = truth * (torch.randn(4, 8, 1, 1, generator=generator, dtype=torch.float64)).exp()
    ap2, probes = torch.ones_like(truth), _probes(truth, 16)
    pooled = (ratio(ap2, probes, 0, (1,)) / truth).log().square().mean().sqrt()
    raw = (probes.square().mean(0) / truth).log().square().mean().sqrt()
    assert pooled < 0.9 * raw
    assert pooled < 0.4  # the deviation of units within a channel


def test_equal_units_are_pooled() -> None:
    truth = torch.full((3, 8, 6, 6), 2.0, dtype=torch.float64)
    found = ratio(torch.ones_like(truth), _probes(truth, 16), 0, (1,))
    assert float((found / truth).log().square().mean().sqrt()) < 0.1  # the raw ones err by 0.35


def test_nothing_over_nothing_is_one() -> None:
    variance = torch.zeros(2, 3)
    assert torch.equal(ratio(variance, torch.zeros(4, 2, 3), 0, (-1,)), torch.ones(2, 3))
    variance[0, 0] = 1.0
    assert bool(ratio(variance, _probes(variance, 4), 0, (-1,)).isfinite().all())


def test_shifts_that_are_noise_vanish_and_large_ones_stay() -> None:
    variance, noise = torch.ones(2, 100), torch.full((2, 100), 0.01)
    shift = 0.1 * torch.randn(2, 100, generator=torch.Generator().manual_seed(0))
    shift[1] += 1.0
    found = shrunk(shift, noise, variance, 0)
    assert float(found[0].square().mean()) < 0.25 * float(shift[0].square().mean())
    torch.testing.assert_close(found[1], shift[1], rtol=0.02, atol=0.0)


def test_the_variance_of_draws_has_no_bias() -> None:
    draws = torch.randn(5, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(variance_of_draws(draws, draws.mean(0)), draws.var(0))
