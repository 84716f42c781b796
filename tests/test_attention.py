"""Attention: against Monte Carlo, against torch where nothing is random, written out and in one call."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Mean, Normal, Sample
from momentprop.dispatch.composites import OPENED, opened
from momentprop.kernels import attention as kernels
from momentprop.kernels import softmax as softmax_kernels
from momentprop.rules.attention import notes as notes

LOWEST = torch.finfo(torch.float32).min


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _moments(draw: Callable[[], Tensor], pieces: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of what `draw` gives, which is a batch of draws."""
    start = draw()
    reference, count = start[0], 0
    first = second = torch.zeros_like(start[0])
    with torch.no_grad():
        for _ in range(pieces):
            deviation = draw() - reference
            count += len(deviation)
            first, second = first + deviation.sum(0), second + (deviation * deviation).sum(0)
    mean = first / count
    return reference + mean, (second / count - mean * mean).sqrt()


def _drawn(value: Normal, n: int, generator: torch.Generator) -> Tensor:
    return value.sample(n, generator=generator)


def _deviations(found: Any, mean: Tensor, std: Tensor) -> tuple[float, float, float]:
    """How far the logarithm of the deviation is off on average and at worst, and the mean in units of it."""
    ratio = (found.variance.sqrt() / std).log()
    return float(ratio.mean().abs()), float(ratio.abs().max()), float(((found.loc - mean) / std).abs().max())


def _attention_case(
    keys: int, features: int, sharpness: float, query_noise: float, key_noise: float, seed: int = 1
) -> tuple[Normal, Normal, Normal]:
    """Six queries; keys have a common part, which the softmax does not see, and all variances are uneven."""
    g = _generator(seed)

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
    return float(found.variance.mean())


def _check_against_draws(keys: int, features: int, sharpness: float, noises: tuple[float, float]) -> None:
    query, key, value = _attention_case(keys, features, sharpness, *noises)
    g = _generator(7)
    mean, std = _moments(
        lambda: F.scaled_dot_product_attention(_drawn(query, 500, g), _drawn(key, 500, g), _drawn(value, 500, g)), 24
    )
    found = F.scaled_dot_product_attention(query, key, value)
    average, worst, off = _deviations(found, mean, std)
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
    mean = 2 * torch.randn(50, 30, generator=_generator(0), dtype=torch.float64)
    for scale, of_mean, of_std in ((0.1, 1e-3, 0.05), (0.3, 5e-3, 0.12), (3.0, 0.06, 0.25)):
        variance = scale * (0.1 + 1.8 * torch.rand(50, 30, generator=_generator(1), dtype=torch.float64))
        found = kernels.weights(kernels.Scores(mean, variance))
        exact = softmax_kernels.softmax(mean, variance)
        assert (found.mean - exact.mean).abs().max() < of_mean
        assert torch.allclose(found.mean.sum(-1), torch.ones(50, dtype=torch.float64), atol=1e-12)
        probable = exact.mean > 0.1
        assert (found.variance / exact.variance)[probable].sqrt().log().abs().max() < of_std


def _masks(queries: int, keys: int) -> Iterator[tuple[str, Tensor | None]]:
    seen = torch.rand(queries, keys, generator=_generator(3)) < 0.7
    seen[:, 0] = True
    blind = seen.clone()
    blind[1] = False
    yield "none", None
    yield "bool", seen
    yield "broadcast", seen[:1]
    yield "of_heads", torch.rand(2, 3, queries, keys, generator=_generator(4)) < 0.8
    yield "float", torch.randn(queries, keys, generator=_generator(5))
    yield "minus_infinity", torch.zeros(queries, keys).masked_fill(~seen, -torch.inf)
    yield "lowest", torch.zeros(queries, keys).masked_fill(~seen, LOWEST)
    yield "all_masked", blind
    yield "all_minus_infinity", torch.zeros(queries, keys).masked_fill(~blind, -torch.inf)
    yield "all_lowest", torch.zeros(queries, keys).masked_fill(~blind, LOWEST)


MASKS = dict(_masks(5, 7))


def _heads(variance: float, dtype: torch.dtype = torch.float32) -> list[Normal]:
    g = _generator(11)
    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    return [
        Normal(torch.randn(*shape, generator=g).to(dtype), variance * torch.rand(*shape, generator=g).to(dtype))
        for shape in shapes
    ]


@pytest.mark.parametrize("mask", MASKS)
def test_certain_attention_is_torchs(mask: str) -> None:
    query, key, value = (part.loc for part in _heads(0.0))
    plain = F.scaled_dot_product_attention(query, key, value, MASKS[mask])
    found = F.scaled_dot_product_attention(Normal(query, 0.0), Normal(key, 0.0), Normal(value, 0.0), MASKS[mask])
    assert torch.allclose(found.loc, plain, atol=1e-6)
    assert not found.variance.any()
    mean = F.scaled_dot_product_attention(Mean(query), key, Mean(value), MASKS[mask], dropout_p=0.5)
    assert torch.equal(mean.loc, plain)


@pytest.mark.parametrize("mask", MASKS)
def test_attention_is_finite_under_masks(mask: str) -> None:
    parts = _heads(0.5)
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
    query, key, value = _heads(0.5)
    seen = torch.tensor([True] * 4 + [False] * 3)
    few = F.scaled_dot_product_attention(query, key[:, :, :4], value[:, :, :4])
    for mask in (seen.expand(5, 7), torch.zeros(5, 7).masked_fill(~seen, LOWEST)):
        found = F.scaled_dot_product_attention(query, key, value, mask)
        assert torch.allclose(found.loc, few.loc, atol=1e-5)
        assert torch.allclose(found.variance, few.variance, rtol=1e-4)


def test_causal_attention_is_that_of_the_triangle() -> None:
    query, key, value = _heads(0.5)
    causal = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    masked = F.scaled_dot_product_attention(query, key, value, torch.ones(5, 7).tril().bool())
    assert torch.equal(causal.loc, masked.loc)
    assert torch.equal(causal.variance, masked.variance)
    with pytest.raises(ValueError, match="either `attn_mask` or `is_causal=True`"):
        F.scaled_dot_product_attention(query, key, value, torch.ones(5, 7), is_causal=True)


def test_grouped_queries_share_keys() -> None:
    _, key, value = _heads(0.5)
    query = Normal(torch.randn(2, 6, 5, 4, generator=_generator(0)), 0.2)
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
    query, key, value = _heads(0.5, torch.float64)
    weights = torch.softmax(query.loc @ key.loc.mT / 2, -1)
    linear = weights @ value
    found = F.scaled_dot_product_attention(query.loc, key.loc, value)
    assert torch.allclose(found.loc, linear.loc, atol=1e-14)
    assert torch.allclose(found.variance, linear.variance, rtol=1e-13)


@pytest.mark.parametrize("random", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_a_plain_part_is_one_without_variance(random: tuple[int, ...]) -> None:
    parts: list[Any] = _heads(0.5, torch.float64)
    mixed = [part if i in random else part.loc for i, part in enumerate(parts)]
    certain = [part if i in random else Normal(part.loc, 0.0) for i, part in enumerate(parts)]
    found, expected = F.scaled_dot_product_attention(*mixed), F.scaled_dot_product_attention(*certain)
    assert torch.allclose(found.loc, expected.loc, atol=1e-13)
    assert torch.allclose(found.variance, expected.variance, rtol=1e-9)


def test_a_random_mask_is_noise_of_its_own() -> None:
    query, key, value = _heads(0.0, torch.float64)
    mask = Normal(torch.randn(5, 7, generator=_generator(0), dtype=torch.float64), 0.3)
    found = F.scaled_dot_product_attention(query.loc, key.loc, value.loc, mask)
    scores = Normal(query.loc @ key.loc.mT / 2, 0.0) + mask
    expected = torch.softmax(scores, -1) @ value.loc
    assert torch.allclose(found.loc, expected.loc, atol=0.01)
    assert (found.variance / expected.variance).sqrt().log().abs().max() < 0.1


def test_dropout_of_plain_weights_is_exact() -> None:
    query, key, value = _heads(0.5, torch.float64)
    p = torch.softmax(query.loc @ key.loc.mT / 2, -1)
    found = F.scaled_dot_product_attention(query.loc, key.loc, value, dropout_p=0.3)
    second = (value.loc**2 + value.variance) / 0.7
    assert torch.allclose(found.loc, p @ value.loc, atol=1e-13)
    assert torch.allclose(found.variance, (p * p) @ (second - value.loc**2), rtol=1e-12)
    assert not F.scaled_dot_product_attention(query, key, value, dropout_p=1.0).variance.any()


def test_dropout_agrees_with_draws() -> None:
    query, key, value = _attention_case(32, 16, 2.0, 0.3, 0.3)
    g = _generator(7)
    torch.manual_seed(0)

    def draw() -> Tensor:
        parts = (_drawn(part, 1000, g) for part in (query, key, value))
        return F.scaled_dot_product_attention(*parts, dropout_p=0.25)

    average, worst, off = _deviations(
        F.scaled_dot_product_attention(query, key, value, dropout_p=0.25), *_moments(draw, 15)
    )
    assert average < 0.03
    assert worst < 0.15
    assert off < 0.1


def test_sampled_attention_draws_its_dropout() -> None:
    parts = [Sample(part.loc) for part in _heads(0.0)]
    torch.manual_seed(0)
    found = F.scaled_dot_product_attention(*parts, dropout_p=0.5)
    assert isinstance(found, Sample)
    assert not torch.allclose(found.loc, F.scaled_dot_product_attention(*parts).loc)


# written out


def _written_out(query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0) -> Any:
    scores = torch.matmul(query, key.transpose(-2, -1)) * query.shape[-1] ** -0.5
    weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
    return torch.matmul(F.dropout(weights, dropout), value)


@pytest.mark.parametrize("mask", ["none", "float", "minus_infinity", "lowest"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_written_out_is_attention_in_one_call(mask: str, dropout: float) -> None:
    parts = _heads(0.5, torch.float64)
    at_once = F.scaled_dot_product_attention(*parts, MASKS[mask], dropout)
    written = _written_out(*parts, MASKS[mask], dropout)
    assert torch.allclose(written.loc, at_once.loc, atol=1e-10)
    assert torch.allclose(written.variance, at_once.variance, rtol=1e-8)


def test_scores_need_not_be_a_product() -> None:
    g = _generator(0)
    scores = Normal(2 * torch.randn(6, 40, generator=g), 0.5 * torch.rand(6, 40, generator=g))
    value = Normal(torch.randn(40, 8, generator=g), 0.01)
    g = _generator(7)
    reference = _moments(lambda: torch.softmax(_drawn(scores, 1000, g), -1) @ _drawn(value, 1000, g), 20)
    average, worst, off = _deviations(torch.softmax(scores, -1) @ value, *reference)
    assert average < 0.01
    assert worst < 0.06
    assert off < 0.03
    weights = torch.softmax(scores, -1)
    independent = Normal(weights.loc, weights.variance) @ value
    assert _deviations(independent, *reference)[1] > 0.1, "this would not tell the rule from independence"


KEEPING: dict[str, Callable[[Any], Any]] = {
    "itself": lambda w: w,
    "clone": lambda w: w.clone(),
    "contiguous": lambda w: w.contiguous(),
    "to": lambda w: w.to(torch.float32),
    "to_dtype_keyword": lambda w: w.to(dtype=torch.float32),
    "type": lambda w: w.type(torch.float32),
    "type_as": lambda w: w.type_as(w),
    "float": lambda w: w.float(),
    "inactive_dropout": lambda w: F.dropout(w, 0.5, training=False),
}
LOSING: dict[str, Callable[[Any], Any]] = {
    "scaled": lambda w: w * 1.0,
    "in_place": lambda w: w.mul_(1.0),
    "view_in_place": lambda w: (w.view(-1).mul_(1.0), w)[1],
    "reshaped": lambda w: w.view(2, 3, 5, 7),
    "detached": lambda w: w.detach(),
    "copied": lambda w: Normal(w.loc, w.variance),
}


@pytest.mark.parametrize("name", [*KEEPING, *LOSING])
def test_what_leaves_the_weights_alone_keeps_their_note(name: str) -> None:
    query, key, value = _heads(0.5)
    expected = _written_out(query, key, value)
    weights = F.softmax(torch.matmul(query, key.mT) * 0.5, -1)
    found = ({**KEEPING, **LOSING}[name](weights)) @ value
    assert torch.allclose(found.loc, expected.loc, atol=1e-6)
    assert torch.allclose(found.variance, expected.variance, rtol=1e-5) == (name in KEEPING)


def test_a_note_does_not_survive_pickling_or_flattening() -> None:
    import copy

    query, key, _ = _heads(0.5)
    weights = torch.softmax(torch.matmul(query, key.mT), -1)
    assert weights.note is not None
    assert copy.deepcopy(weights).note is None
    assert torch.utils._pytree.tree_map(lambda part: part, weights).note is None


def test_scores_whose_query_was_overwritten_are_independent() -> None:
    query, key, value = _heads(0.5)
    scores = torch.matmul(query[:], key.mT)
    as_it_was = torch.softmax(Normal(scores.loc.clone(), scores.variance.clone()), -1) @ value
    query.mul_(2.0)  # the slice above shares its memory
    found = torch.softmax(scores, -1) @ value
    assert torch.allclose(found.variance, as_it_was.variance, rtol=1e-5)


def test_written_out_weights_in_half_precision_are_computed_in_float32() -> None:
    parts = _heads(0.1)
    expected = _written_out(*parts)
    for found in (
        _written_out(*(part.bfloat16() for part in parts)),
        F.scaled_dot_product_attention(*(part.bfloat16() for part in parts)),
    ):
        assert found.dtype == torch.bfloat16
        assert torch.allclose(found.loc.float(), expected.loc, atol=0.05)
        assert (found.variance.float() / expected.variance).log().abs().max() < 0.1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = F.scaled_dot_product_attention(*parts)
    assert torch.allclose(found.variance, expected.variance, rtol=1e-4)


# derivatives, compilation, precision, memory


def _flat(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    def flat(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        found = function(*(Normal.of(*pair) for pair in zip(tensors[:6:2], tensors[1:6:2], strict=True)), *tensors[6:])
        return found.loc, found.variance

    return flat


def _small(variance: float, queries: int = 2, keys: int = 3) -> list[Tensor]:
    g = _generator(2)
    leaves = []
    for length in (queries, keys, keys):
        leaves += [torch.randn(length, 2, generator=g, dtype=torch.float64)]
        leaves += [variance * (0.2 + torch.rand(length, 2, generator=g, dtype=torch.float64))]
    return [leaf.requires_grad_() for leaf in leaves]


@pytest.mark.parametrize("variance", [0.02, 0.5, 5.0])
@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, _written_out])
def test_gradients_of_attention_are_right(function: Callable[..., Any], variance: float) -> None:
    bias = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_flat(function), (*_small(variance), bias), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, _written_out])
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
        _written_out,
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
    parts = _heads(0.5, torch.float64)
    mapped = torch.func.vmap(F.scaled_dot_product_attention)(*parts)
    assert torch.allclose(mapped.variance, F.scaled_dot_product_attention(*parts).variance, rtol=1e-9)


@pytest.mark.parametrize("variance", [1e-8, 1e-4, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 10.0])
def test_float32_agrees_with_float64(scale: float, variance: float) -> None:
    narrow = [Normal(scale * part.loc, variance / 0.5 * part.variance) for part in _heads(0.5)]
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
    query, key, value = _heads(0.5, torch.float64)
    mask = torch.randn(2, 1, 5, 7, generator=_generator(0), dtype=torch.float64)
    whole = F.scaled_dot_product_attention(query, key[:1], value, mask), _written_out(query, key, value, mask)
    largest: list[int] = []
    mixture = kernels.mixture

    def spy(scores: Any, *rest: Any) -> Any:
        largest.append(scores.mean.shape[0])
        return mixture(scores, *rest)

    monkeypatch.setattr(notes, "_MOST", 100)
    monkeypatch.setattr(kernels, "mixture", spy)
    monkeypatch.setattr(notes, "mixture", spy)
    pieces = F.scaled_dot_product_attention(query, key[:1], value, mask), _written_out(query, key, value, mask)
    assert largest == [1] * 4
    for found, expected in zip(pieces, whole, strict=True):
        assert torch.allclose(found.loc, expected.loc, atol=1e-14)
        assert torch.allclose(found.variance, expected.variance, rtol=1e-12)


# composites and layers


def test_opened_functions_run_their_body() -> None:
    def body(x: Tensor) -> Tensor:
        return x

    assert set(OPENED) == {"multi_head_attention_forward"}
    assert opened(body)(3) == 3
    x = torch.randn(4, 2, 8, generator=_generator(0))
    layer = nn.MultiheadAttention(8, 2)
    arguments = (x, x, x, 8, 2, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0)
    more = (layer.out_proj.weight, layer.out_proj.bias)
    for found, expected in zip(
        OPENED["multi_head_attention_forward"](*arguments, *more),
        F.multi_head_attention_forward(*arguments, *more),
        strict=True,
    ):
        assert torch.equal(found, expected)


MULTI_HEAD: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "without_bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero_attention": {"add_zero_attn": True},
    "other_widths": {"kdim": 12, "vdim": 10},
}
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without_weights": {"need_weights": False},
    "weights_of_heads": {"average_attn_weights": False},
    "mask": {"attn_mask": torch.ones(5, 5).triu(1).bool()},
    "causal": {"attn_mask": torch.ones(5, 5).triu(1).bool(), "is_causal": True, "need_weights": False},
    "float_mask": {"attn_mask": MASKS["float"][:, :5], "need_weights": False},
    "padding": {"key_padding_mask": torch.arange(5).expand(5, 5) > 3},
    "padding_and_mask": {
        "key_padding_mask": torch.arange(5).expand(5, 5) > 3,
        "attn_mask": torch.ones(5, 5).triu(1) > 0,
    },
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("options", MULTI_HEAD)
def test_multi_head_attention_is_torchs_where_certain(options: str, call: str) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, dropout=0.2, **MULTI_HEAD[options]).eval()
    query, key, value = torch.randn(5, 5, 16), torch.randn(5, 5, layer.kdim), torch.randn(5, 5, layer.vdim)
    plain = layer(query, key, value, **CALLS[call])
    certain = layer(*(Normal(part, 0.0) for part in (query, key, value)), **CALLS[call])
    layer.train()
    mean = layer(*(Mean(part) for part in (query, key, value)), **CALLS[call])
    for expected, found, of_mean in zip(plain, certain, mean, strict=True):
        if expected is None:
            assert found is None
            assert of_mean is None
        else:
            assert torch.allclose(found.loc, expected, atol=2e-6)
            assert torch.allclose(of_mean.loc, expected, atol=2e-6)
            assert not found.variance.any()


def test_unbatched_self_attention_with_its_fast_path_declined() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(5, 16)
    for inactive in (torch.no_grad(), torch.inference_mode()):
        with inactive:
            found, _ = layer(*[Normal(x, 0.0)] * 3)
            assert torch.allclose(found.loc, layer(x, x, x)[0], atol=1e-6)


def _layer_moments(layer: Callable[..., Any], *values: Normal, pieces: int = 10) -> tuple[Tensor, Tensor]:
    g = _generator(5)
    return _moments(lambda: layer(*(_drawn(value, 300, g) for value in values)), pieces)


@pytest.mark.parametrize("need_weights", [True, False])
def test_self_attention_agrees_with_draws(need_weights: bool) -> None:
    """Query, key and value come from the same noise and the heads' outputs are correlated: both are ignored."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = Normal(torch.randn(12, 32), 0.1)
    with torch.no_grad():
        found, weights = layer(*[x[None]] * 3, need_weights=need_weights)
        reference = _layer_moments(lambda drawn: layer(drawn, drawn, drawn)[0], x)
    average, worst, off = _deviations(found[0], *reference)
    assert average < 0.05
    assert worst < 0.4
    assert off < 0.3
    if need_weights:
        assert torch.allclose(weights.loc.sum(-1), torch.ones(1, 12), atol=1e-5)


def test_attention_dropout_in_train_mode_agrees_with_draws() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=True, dropout=0.2).train()
    x = Normal(torch.randn(12, 32), 0.1)
    with torch.no_grad():
        reference = _layer_moments(lambda drawn: layer(drawn, drawn, drawn)[0], x)
        for need_weights in (True, False):
            average, worst, off = _deviations(layer(*[x[None]] * 3, need_weights=need_weights)[0][0], *reference)
            assert average < 0.05
            assert worst < 0.5
            assert off < 0.2


def _encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, **options)


def _decoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True, **options)


LAYERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "encoder_layer": (_encoder_layer, 1),
    "encoder_layer_norm_first_gelu": (lambda: _encoder_layer(norm_first=True, activation="gelu"), 1),
    "decoder_layer": (_decoder_layer, 2),
    "decoder_layer_norm_first": (lambda: _decoder_layer(norm_first=True), 2),
    "encoder": (lambda: nn.TransformerEncoder(_encoder_layer(), 2), 1),
    "encoder_norm_first": (
        lambda: nn.TransformerEncoder(_encoder_layer(norm_first=True), 2, enable_nested_tensor=False),
        1,
    ),
    "decoder": (lambda: nn.TransformerDecoder(_decoder_layer(), 2, nn.LayerNorm(32)), 2),
    "transformer": (lambda: nn.Transformer(32, 4, 1, 1, 64, 0.0, batch_first=True), 2),
}
CONTEXTS: list[Callable[[], AbstractContextManager[Any]]] = [torch.enable_grad, torch.no_grad, torch.inference_mode]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", LAYERS)
def test_transformers_are_torchs_where_certain(name: str, context: Callable[[], AbstractContextManager[Any]]) -> None:
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    layer = make().eval()
    given = [torch.randn(2, 6, 32) for _ in range(inputs)]
    with context():
        found = layer(*(Normal(part, 0.0) for part in given))
        assert torch.allclose(found.loc, layer(*given), atol=1e-5)
        assert not found.variance.any()


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", [Normal, Mean])
def test_an_encoder_declines_nested_tensors(kind: type, nested: bool) -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(_encoder_layer(), 2, enable_nested_tensor=nested).eval()
    x, padding = torch.randn(2, 6, 32), torch.arange(6).expand(2, 6) > torch.tensor([[3], [5]])
    seen = ~padding
    with torch.no_grad():
        found = encoder(Mean(x) if kind is Mean else Normal(x, 0.0), src_key_padding_mask=padding)
        expected = encoder.train()(x, src_key_padding_mask=padding)  # where torch does not nest either
    assert torch.allclose(found.loc[seen], expected[seen], atol=1e-5)


# name -> largest error of the geometric mean, of the worst unit (in logarithms) and of the mean, as measured
MEASURED = {
    "encoder_layer": (0.05, 0.25, 0.15),
    "encoder_layer_norm_first_gelu": (0.03, 0.2, 0.12),
    "decoder_layer": (0.08, 0.4, 0.15),
    "encoder": (0.25, 0.7, 0.35),
}


@pytest.mark.parametrize("name", MEASURED)
def test_transformers_agree_with_draws_as_measured(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    layer = make().eval()
    values = [Normal(torch.randn(12, 32), 0.1) for _ in range(inputs)]
    with torch.no_grad():
        found = layer(*(value[None] for value in values))
        reference = _layer_moments(layer, *values)
    average, worst, off = _deviations(found[0], *reference)
    assert (average < MEASURED[name][0], worst < MEASURED[name][1], off < MEASURED[name][2]) == (True,) * 3


@pytest.mark.parametrize("name", ["encoder_layer", "decoder_layer", "transformer"])
def test_gradients_reach_every_parameter_of_a_transformer(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    layer = make()
    found = layer(*(Normal(torch.randn(2, 5, 32), 0.1) for _ in range(inputs)))
    (found.loc.square().sum() + found.variance.sum()).backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@pytest.mark.full
@pytest.mark.parametrize("name", LAYERS)
def test_compiled_transformers_are_eager_ones(name: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    layer = make().eval()
    values = [Normal(torch.randn(2, 5, 32), 0.1) for _ in range(inputs)]
    found, expected = torch.compile(layer, fullgraph=True, backend="aot_eager")(*values), layer(*values)
    assert torch.allclose(found.loc, expected.loc, atol=1e-5)
    assert torch.allclose(found.variance, expected.variance, rtol=1e-4)
