"""Derivatives, compilation, precision and memory of attention."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal
from momentprop.kernels import attention as kernels
from momentprop.rules.attention import notes
from tests.rules.attention.inputs import heads, seeded, written_out


def _flat(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    def flat(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        found = function(*(Normal.of(*pair) for pair in zip(tensors[:6:2], tensors[1:6:2], strict=True)), *tensors[6:])
        return found.loc, found.variance

    return flat


def _small(variance: float, queries: int = 2, keys: int = 3) -> list[Tensor]:
    g = seeded(2)
    leaves = []
    for length in (queries, keys, keys):
        leaves += [torch.randn(length, 2, generator=g, dtype=torch.float64)]
        leaves += [variance * (0.2 + torch.rand(length, 2, generator=g, dtype=torch.float64))]
    return [leaf.requires_grad_() for leaf in leaves]


@pytest.mark.parametrize("variance", [0.02, 0.5, 5.0])
@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, written_out])
def test_gradients_of_attention_are_right(function: Callable[..., Any], variance: float) -> None:
    bias = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_flat(function), (*_small(variance), bias), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, written_out])
def test_gradients_at_zero_variance_are_those_of_the_limit(function: Callable[..., Any]) -> None:
    at_zero, nearby = _small(0.0), _small(1e-7)
    for leaf, near in zip(at_zero[::2], nearby[::2], strict=True):
        assert torch.equal(leaf, near)
    pairs = zip(_flat(function)(*at_zero), _flat(function)(*nearby), strict=True)
    for result, close in pairs:
        found = torch.autograd.grad(result.sum(), at_zero, retain_graph=True, materialize_grads=True)
        expected = torch.autograd.grad(close.sum(), nearby, retain_graph=True, materialize_grads=True)
        for a, b in zip(found, expected, strict=True):
            assert a.isfinite().all()
            assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        written_out,
        pytest.param(F.scaled_dot_product_attention, marks=pytest.mark.full),
        pytest.param(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None, 0.3, True), marks=pytest.mark.full),
    ],
)
def test_compiled_attention_is_eager_attention(function: Callable[..., Any]) -> None:
    torch.compiler.reset()
    leaves = _small(0.5)
    compiled = torch.compile(_flat(function), fullgraph=True, backend="aot_eager")
    results = compiled(*leaves), _flat(function)(*leaves)
    for found, expected in zip(*results, strict=True):
        assert torch.allclose(found, expected, atol=1e-12)
    grads = (torch.autograd.grad(result[0].sum() + result[1].sum(), leaves) for result in results)
    for found, expected in zip(*grads, strict=True):
        assert torch.allclose(found, expected, atol=1e-11)


def test_attention_maps_over_a_batch_of_values() -> None:
    parts = heads(0.5, torch.float64)
    mapped = torch.func.vmap(F.scaled_dot_product_attention)(*parts)
    assert torch.allclose(mapped.variance, F.scaled_dot_product_attention(*parts).variance, rtol=1e-9)


@pytest.mark.parametrize("variance", [1e-8, 1e-4, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 10.0])
def test_float32_agrees_with_float64(scale: float, variance: float) -> None:
    narrow = [Normal(scale * part.loc, variance / 0.5 * part.variance) for part in heads(0.5)]
    wide = [part.double() for part in narrow]
    found, expected = F.scaled_dot_product_attention(*narrow), F.scaled_dot_product_attention(*wide)
    assert torch.allclose(found.variance.double(), expected.variance, rtol=1e-4)
    assert ((found.loc - expected.loc).abs() < 1e-4 * expected.variance.sqrt() + 1e-5 * scale).all()


def test_certain_attention_to_one_key_keeps_its_small_variance() -> None:
    """Where one key takes nearly all, the variance is that of the small rest; nothing may cancel against the value."""
    query = torch.tensor([[[20.0, 0.0]]])
    key = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]])
    value = torch.tensor([[[3.0], [1.0], [-2.0]]])
    parts = [Normal(part, 1e-4) for part in (query, key)]
    found = F.scaled_dot_product_attention(*parts, value)
    wide = F.scaled_dot_product_attention(*(part.double() for part in parts), value.double())
    assert wide.variance < 1e-7
    assert torch.allclose(found.variance.double(), wide.variance, rtol=1e-4)


def test_a_large_batch_is_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = heads(0.5, torch.float64)
    mask = torch.randn(2, 1, 5, 7, generator=seeded(0), dtype=torch.float64)
    whole = F.scaled_dot_product_attention(query, key[:1], value, mask), written_out(query, key, value, mask)
    largest: list[int] = []
    mixture = kernels.mixture

    def spy(scores: Any, *rest: Any) -> Any:
        largest.append(scores.mean.shape[:-2].numel() // 3)  # of the batch: there are three heads
        return mixture(scores, *rest)

    monkeypatch.setitem(notes._MOST, "cpu", 100)
    monkeypatch.setattr(kernels, "mixture", spy)
    monkeypatch.setattr(notes, "mixture", spy)
    pieces = F.scaled_dot_product_attention(query, key[:1], value, mask), written_out(query, key, value, mask)
    assert largest == [1] * 4
    for found, expected in zip(pieces, whole, strict=True):
        assert torch.allclose(found.loc, expected.loc, atol=1e-14)
        assert torch.allclose(found.variance, expected.variance, rtol=1e-12)
