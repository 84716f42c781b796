"""Attention stays finite for all finite scores, and is plain attention without noise."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal
from momentprop.kernels.attention import Scores, weights
from momentprop.kernels.softmax import fast
from tests.rules.attention.inputs import seeded, written_out

_DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
every_dtype = pytest.mark.parametrize("dtype", _DTYPES, ids=str)
both = pytest.mark.parametrize("function", [F.scaled_dot_product_attention, written_out])


class _Draws:
    """Random attention of 64 batches, with sizes over many decades."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.g, self.dtype = seeded(seed), dtype
        self.keys, self.features = 2 + seed % 5, 1 + seed % 3

    def _sizes(self, low: float, high: float) -> Tensor:
        return 10 ** (low + (high - low) * torch.rand(64, 1, 1, generator=self.g, dtype=torch.float64))

    def _mean(self, rows: int, low: float, high: float) -> Tensor:
        noise = torch.randn(64, rows, self.features, generator=self.g, dtype=torch.float64)
        return (self._sizes(low, high) * noise).to(self.dtype)

    def _variance(self, like: Tensor, high: float) -> Tensor:
        part = torch.rand(like.shape, generator=self.g, dtype=torch.float64)
        size = self._sizes(-9, high)
        return torch.where(part < 0.2, 0.0, size * part).to(self.dtype)

    def values(self) -> tuple[Normal, Normal, Normal]:
        query, key, value = self._mean(2, -2, 2), self._mean(self.keys, -2, 2), self._mean(self.keys, 0, 0)
        most = 0.0 if self.dtype == torch.float16 else 4.0  # the variance of a score must not overflow
        pairs = ((query, most), (key, most), (value, 0.0))
        return tuple(Normal.of(mean, self._variance(mean, high)) for mean, high in pairs)


@every_dtype
@both
@pytest.mark.parametrize("seed", range(8))
def test_moments_and_gradients_are_finite(function, dtype, seed):
    query, key, value = _Draws(seed, dtype).values()
    leaves = [part.requires_grad_() for given in (query, key, value) for part in (given.loc, given.variance)]
    for given in (
        (query, key, value),
        (query, key.loc, value),
        (query.loc, key, value.loc),
        (query, key.loc, value.loc),
    ):
        y = function(*given)
        assert y.loc.isfinite().all()
        assert y.variance.isfinite().all()
        assert (y.variance >= 0).all()
        for output in (y.loc, y.variance):
            found = torch.autograd.grad(output.sum(), leaves, retain_graph=True, allow_unused=True)
            assert not any(grad.isnan().any() for grad in found if grad is not None)


@every_dtype
@both
def test_means_stay_within_the_values(function, dtype):
    query, key, value = _Draws(3, dtype).values()
    y = function(query, key, value.loc)
    slack = 1e-5 if dtype in (torch.float32, torch.float64) else 0.02
    low, high = value.loc.amin(-2, keepdim=True), value.loc.amax(-2, keepdim=True)
    width = high - low
    assert (y.loc >= low - slack * width - slack).all()
    assert (y.loc <= high + slack * width + slack).all()
    assert (y.variance <= (0.25 + slack) * width * width + slack).all()


@every_dtype
@both
def test_without_noise_it_is_plain_attention(function, dtype):
    parts = [part.loc for part in _Draws(1, dtype).values()]
    y = function(*(Normal.of(part, torch.zeros_like(part)) for part in parts))
    wide = function(*(part.double() for part in parts))
    # the scores themselves are rounded: a difference of a unit in their last place is one of the logits
    size = (parts[0].double() @ parts[1].double().mT).abs().amax((-2, -1), keepdim=True)
    error = (y.loc.double() - wide).abs()
    assert (
        error <= 8 * torch.finfo(dtype).eps * (1 + size) * (1 + parts[2].double().abs().amax((-2, -1), keepdim=True))
    ).all()
    assert torch.equal(y.variance, torch.zeros_like(y.variance))


@every_dtype
@pytest.mark.parametrize("variance", [0.0, 1e-6, 1.0, 4.0, 100.0])
def test_a_sure_winner_takes_all(dtype, variance):
    query = Normal(torch.tensor([[25.0]], dtype=dtype), variance)
    key = torch.tensor([[25.0], [-25.0]], dtype=dtype)
    y = F.scaled_dot_product_attention(query, key, torch.tensor([[1.0], [2.0]], dtype=dtype))
    share = 0.5 * math.erfc(25 / math.sqrt(2 * variance)) if variance else 0.0
    assert y.loc.item() == pytest.approx(1 + share, abs=0.02)
    assert 0 <= y.variance.item() <= 0.02


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2, 1e4])
def test_two_keys_are_a_logistic_function(scale):
    """The exact moments of the average of two values under query noise, by quadrature."""
    g = seeded(5)
    mean = 3 * scale**0.5 * torch.randn(200, 1, 1, generator=g, dtype=torch.float64)
    variance = torch.full_like(mean, scale)
    key = torch.tensor([[[0.5], [-0.5]]], dtype=torch.float64).expand(200, 2, 1)
    value = torch.tensor([[[1.0], [0.0]]], dtype=torch.float64).expand(200, 2, 1)
    y = F.scaled_dot_product_attention(Normal(mean, variance), key, value)
    p = torch.sigmoid(Normal(mean, variance))
    assert (y.loc - p.loc).abs().max() < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_least_number_masks_as_minus_infinity_does(dtype):
    """Hugging Face masks by the least finite number, often all keys but one."""
    g = seeded(6)
    query, key, value = (Normal(torch.randn(2, 5, 8, generator=g, dtype=dtype), 0.3) for _ in range(3))
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    masks = [torch.zeros(5, 5, dtype=dtype).masked_fill(hidden, far) for far in (-torch.inf, torch.finfo(dtype).min)]
    wanted, found = (F.scaled_dot_product_attention(query, key, value, attn_mask=mask) for mask in masks)
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.variance, wanted.variance)
    scores = query @ key.mT
    for function in (torch.softmax, torch.logsumexp):
        found, wanted = (function(scores + mask, -1) for mask in masks)
        assert found.loc.isfinite().all()
        torch.testing.assert_close(found.loc, wanted.loc)
        torch.testing.assert_close(found.variance, wanted.variance)


@pytest.mark.parametrize("width", [10.0, 100.0, 1000.0])
def test_a_sure_winner_wins_against_wide_rivals(width):
    mean = torch.tensor([20.0, -20.0, 0.0], dtype=torch.float64) * width
    variance = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64) * width**2
    assert fast(mean, variance)[0][0] > -1e-6
    assert weights(Scores(mean, None, variance)).mean[0] > 1 - 1e-6
