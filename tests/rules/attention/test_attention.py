"""Attention in one call: against Monte Carlo, and against torch where nothing is random."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Mean, Normal, Sample
from momentprop.kernels import attention as kernels
from momentprop.kernels import softmax as softmax_kernels
from tests.rules.attention.inputs import LOWEST, MASKS, deviations, draws_of, heads, moments, seeded


def _attention_case(
    keys: int, features: int, sharpness: float, query_noise: float, key_noise: float, seed: int = 1
) -> tuple[Normal, Normal, Normal]:
    """Six queries; keys have a common part, which the softmax does not see, and all variances are uneven."""
    g = seeded(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    def uneven(scale: float, *shape: int) -> Tensor:
        return scale * (0.1 + 1.8 * torch.rand(*shape, generator=g))

    query = Normal(sharpness * randn(6, features), uneven(query_noise, 6, features))
    key = Normal(randn(keys, features) + randn(1, features), uneven(key_noise / sharpness**2, keys, features))
    return query, key, Normal(randn(keys, features), 0.0)


def _score_variance(query: Normal, key: Normal) -> float:
    """The average variance of the scores, the query's noise seen from the average key."""
    gain = query.shape[-1] ** -0.5
    found = kernels.scores(gain * query.loc @ key.loc.T, query.loc, query.variance, key.loc, key.variance, gain)
    return float(sum(found.noise).mean())


def _check_against_draws(keys: int, features: int, sharpness: float, noises: tuple[float, float]) -> None:
    query, key, value = _attention_case(keys, features, sharpness, *noises)
    g = seeded(7)
    mean, std = moments(
        lambda: F.scaled_dot_product_attention(draws_of(query, 500, g), draws_of(key, 500, g), draws_of(value, 500, g)),
        24,
    )
    found = F.scaled_dot_product_attention(query, key, value)
    average, worst, off = deviations(found, mean, std)
    noise = 0.015  # of the draws, for the worst of some hundred units
    limits = (0.05, 0.2, 0.1) if _score_variance(query, key) <= 1 else (0.15, math.log(2), 0.2)
    assert average < limits[0] + noise / 3, (average, worst, off)
    assert worst < limits[1] + noise, (average, worst, off)
    assert off < limits[2] + 2 * noise, (average, worst, off)


@pytest.mark.parametrize("noises", [(0.02, 0.02), (0.3, 0.0), (0.3, 0.3), (0.0, 10.0)])
@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_attention_agrees_with_draws_as_stated(sharpness: float, noises: tuple[float, float]) -> None:
    _check_against_draws(64, 32, sharpness, noises)


@pytest.mark.full
@pytest.mark.parametrize(
    "noises", [(1e-4, 1e-4), (0.02, 0.02), (0.3, 0.0), (0.0, 0.3), (0.3, 0.3), (1, 1), (2, 2), (0, 10)]
)
@pytest.mark.parametrize("sharpness", [1.0, 4.0])
@pytest.mark.parametrize(("keys", "features"), [(8, 16), (64, 32), (256, 64)])
def test_attention_agrees_with_draws_over_sizes(
    keys: int, features: int, sharpness: float, noises: tuple[float, float]
) -> None:
    _check_against_draws(keys, features, sharpness, noises)


def test_the_weights_agree_with_the_race() -> None:
    mean = 2 * torch.randn(50, 30, generator=seeded(0), dtype=torch.float64)
    for scale, of_mean, of_std in ((0.1, 1e-3, 0.05), (0.3, 5e-3, 0.12), (3.0, 0.06, 0.25)):
        variance = scale * (0.1 + 1.8 * torch.rand(50, 30, generator=seeded(1), dtype=torch.float64))
        found = kernels.weights(kernels.Scores(mean, variance))
        exact = softmax_kernels.softmax(mean, variance)
        assert (found.mean - exact.mean).abs().max() < of_mean
        assert torch.allclose(found.mean.sum(-1), torch.ones(50, dtype=torch.float64), atol=1e-12)
        probable = exact.mean > 0.1
        assert (found.variance / exact.variance)[probable].sqrt().log().abs().max() < of_std


@pytest.mark.parametrize("mask", MASKS)
def test_certain_attention_is_torchs(mask: str) -> None:
    query, key, value = (part.loc for part in heads(0.0))
    plain = F.scaled_dot_product_attention(query, key, value, MASKS[mask])
    found = F.scaled_dot_product_attention(Normal(query, 0.0), Normal(key, 0.0), Normal(value, 0.0), MASKS[mask])
    assert torch.allclose(found.loc, plain, atol=1e-6)
    assert not found.variance.any()
    mean = F.scaled_dot_product_attention(Mean(query), key, Mean(value), MASKS[mask], dropout_p=0.5)
    assert torch.equal(mean.loc, plain)


@pytest.mark.parametrize("mask", MASKS)
def test_attention_is_finite_under_masks(mask: str) -> None:
    parts = heads(0.5)
    leaves = [part.requires_grad_() for value in parts for part in (value.loc, value.variance)]
    found = F.scaled_dot_product_attention(*parts, MASKS[mask])
    assert found.loc.isfinite().all()
    assert found.variance.isfinite().all()
    assert (found.variance >= 0).all()
    for grad in torch.autograd.grad(found.loc.sum() + found.variance.sum(), leaves):
        assert grad.isfinite().all()
    if mask in ("all_masked", "all_minus_infinity"):
        assert not found.loc[..., 1, :].any()
        assert not found.variance[..., 1, :].any()


def test_a_masked_key_is_as_one_that_is_not_there() -> None:
    query, key, value = heads(0.5)
    seen = torch.tensor([True] * 4 + [False] * 3)
    few = F.scaled_dot_product_attention(query, key[:, :, :4], value[:, :, :4])
    for mask in (seen.expand(5, 7), torch.zeros(5, 7).masked_fill(~seen, LOWEST)):
        found = F.scaled_dot_product_attention(query, key, value, mask)
        assert torch.allclose(found.loc, few.loc, atol=1e-5)
        assert torch.allclose(found.variance, few.variance, rtol=1e-4)


def test_causal_attention_is_that_of_the_triangle() -> None:
    query, key, value = heads(0.5)
    causal = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    masked = F.scaled_dot_product_attention(query, key, value, torch.ones(5, 7).tril().bool())
    assert torch.equal(causal.loc, masked.loc)
    assert torch.equal(causal.variance, masked.variance)
    with pytest.raises(ValueError, match="either `attn_mask` or `is_causal=True`"):
        F.scaled_dot_product_attention(query, key, value, torch.ones(5, 7), is_causal=True)


def test_grouped_queries_share_keys() -> None:
    _, key, value = heads(0.5)
    query = Normal(torch.randn(2, 6, 5, 4, generator=seeded(0)), 0.2)
    grouped = F.scaled_dot_product_attention(query, key, value, enable_gqa=True, scale=0.7)
    repeated = F.scaled_dot_product_attention(
        query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), scale=0.7
    )
    plain = F.scaled_dot_product_attention(query.loc, key.loc, value.loc, enable_gqa=True, scale=0.7)
    assert torch.equal(grouped.loc, repeated.loc)
    assert torch.equal(grouped.variance, repeated.variance)
    certain = F.scaled_dot_product_attention(
        *(Normal(part.loc, 0.0) for part in (query, key, value)), enable_gqa=True, scale=0.7
    )
    assert torch.allclose(certain.loc, plain, atol=1e-6)


def test_plain_scores_are_the_linear_rule() -> None:
    query, key, value = heads(0.5, torch.float64)
    weights = torch.softmax(query.loc @ key.loc.mT / 2, -1)
    linear = weights @ value
    found = F.scaled_dot_product_attention(query.loc, key.loc, value)
    assert torch.allclose(found.loc, linear.loc, atol=1e-14)
    assert torch.allclose(found.variance, linear.variance, rtol=1e-13)


@pytest.mark.parametrize("random", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_a_plain_part_is_one_without_variance(random: tuple[int, ...]) -> None:
    parts: list[Any] = heads(0.5, torch.float64)
    mixed = [part if i in random else part.loc for i, part in enumerate(parts)]
    certain = [part if i in random else Normal(part.loc, 0.0) for i, part in enumerate(parts)]
    found, expected = F.scaled_dot_product_attention(*mixed), F.scaled_dot_product_attention(*certain)
    assert torch.allclose(found.loc, expected.loc, atol=1e-13)
    assert torch.allclose(found.variance, expected.variance, rtol=1e-9)


def test_a_random_mask_is_noise_of_its_own() -> None:
    query, key, value = heads(0.0, torch.float64)
    mask = Normal(torch.randn(5, 7, generator=seeded(0), dtype=torch.float64), 0.3)
    found = F.scaled_dot_product_attention(query.loc, key.loc, value.loc, mask)
    scores = Normal(query.loc @ key.loc.mT / 2, 0.0) + mask
    expected = torch.softmax(scores, -1) @ value.loc
    assert torch.allclose(found.loc, expected.loc, atol=0.01)
    assert (found.variance / expected.variance).sqrt().log().abs().max() < 0.1


def test_dropout_of_plain_weights_is_exact() -> None:
    query, key, value = heads(0.5, torch.float64)
    p = torch.softmax(query.loc @ key.loc.mT / 2, -1)
    found = F.scaled_dot_product_attention(query.loc, key.loc, value, dropout_p=0.3)
    second = (value.loc**2 + value.variance) / 0.7
    assert torch.allclose(found.loc, p @ value.loc, atol=1e-13)
    assert torch.allclose(found.variance, (p * p) @ (second - value.loc**2), rtol=1e-12)
    assert not F.scaled_dot_product_attention(query, key, value, dropout_p=1.0).variance.any()


def test_dropout_agrees_with_draws() -> None:
    query, key, value = _attention_case(32, 16, 2.0, 0.3, 0.3)
    g = seeded(7)
    torch.manual_seed(0)

    def draw() -> Tensor:
        parts = (draws_of(part, 1000, g) for part in (query, key, value))
        return F.scaled_dot_product_attention(*parts, dropout_p=0.25)

    average, worst, off = deviations(
        F.scaled_dot_product_attention(query, key, value, dropout_p=0.25), *moments(draw, 15)
    )
    assert average < 0.03
    assert worst < 0.15
    assert off < 0.1


def test_sampled_attention_draws_its_dropout() -> None:
    parts = [Sample(part.loc) for part in heads(0.0)]
    torch.manual_seed(0)
    found = F.scaled_dot_product_attention(*parts, dropout_p=0.5)
    assert isinstance(found, Sample)
    assert not torch.allclose(found.loc, F.scaled_dot_product_attention(*parts).loc)
