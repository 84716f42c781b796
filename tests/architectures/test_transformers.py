"""The attention layers and transformers of torch, unmodified."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Mean, Normal, propagate
from tests.rules.attention.inputs import MASKS, deviations, draws_of, moments, seeded

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


def test_multi_head_attention_takes_a_random_mask() -> None:
    """As WavLM does, whose positions are weighed by a gate."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4).eval()
    x, mask = torch.randn(5, 2, 16), torch.randn(5, 5)

    def attention(x: Any, mask: Any) -> Any:
        projections = layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0, *layer.out_proj.parameters()
        return F.multi_head_attention_forward(x, x, x, 16, 4, *projections, False, attn_mask=mask)[0]

    for kind in (Mean, lambda part: Normal(part, 0.0)):
        assert torch.allclose(
            propagate(attention, kind(x), kind(mask), covariance=False).loc, attention(x, mask), atol=2e-6
        )
    sure, unsure = (propagate(attention, x, Normal(mask, variance), covariance=False) for variance in (0.0, 0.5))
    assert not sure.variance.any()
    assert (unsure.variance > 0).all()


def test_unbatched_self_attention_with_its_fast_path_declined() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(5, 16)
    for inactive in (torch.no_grad(), torch.inference_mode()):
        with inactive:
            found, _ = layer(*[Normal(x, 0.0)] * 3)
            assert torch.allclose(found.loc, layer(x, x, x)[0], atol=1e-6)


def _layer_moments(layer: Callable[..., Any], *values: Normal, pieces: int = 10) -> tuple[Tensor, Tensor]:
    g = seeded(5)
    return moments(lambda: layer(*(draws_of(value, 300, g) for value in values)), pieces)


@pytest.mark.parametrize("need_weights", [True, False])
def test_self_attention_agrees_with_draws(need_weights: bool) -> None:
    """Query, key and value come from the same noise and the heads' outputs are correlated: both are ignored."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = Normal(torch.randn(12, 32), 0.1)
    with torch.no_grad():
        found, weights = layer(*[x[None]] * 3, need_weights=need_weights)
        reference = _layer_moments(lambda drawn: layer(drawn, drawn, drawn)[0], x)
    average, worst, off = deviations(found[0], *reference)
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
            average, worst, off = deviations(layer(*[x[None]] * 3, need_weights=need_weights)[0][0], *reference)
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
    average, worst, off = deviations(found[0], *reference)
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
