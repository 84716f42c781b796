r"""Scaled dot-product attention and multi-head attention."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.codegen.contraction import product
from momentprop.dispatch import Call, rule
from momentprop.dispatch.composites import OPENED
from momentprop.dispatch.registry import composite, mixing, plain
from momentprop.kernels import attention as kernels
from momentprop.kernels.moments import Moments
from momentprop.rules.attention.notes import in_pieces
from momentprop.values import Certain, Independent, Mean, Normal, Value
from momentprop.values.moments import is_random, mean_of, some_value, variance_of


def _drops_out(call: Call) -> bool:
    return bool(call.given("dropout_p", 0.0) > 0)


@mixing("scaled_dot_product_attention", on=Normal, channels=(-3, -1), by_acting=_drops_out)
def scaled_dot_product_attention(
    query: Normal | Tensor,
    key: Normal | Tensor,
    value: Normal | Tensor,
    attn_mask: Normal | Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    r"""Moments of $\mathrm{softmax}(g\,QK^\top + M)\,V$, where any of $Q$, $K$, $V$ and $M$ can be random.

    The variances of the scores are exact. All scores of a query share its noise, which matters only where keys differ
    from the average key; see `kernels.attention`. The rule assumes that query, key and value are independent of each
    other, and so are the tokens. Dropout is propagated, not sampled.

    Error: 0.05 of $\sigma'$ in the geometric mean of units and 0.2 in the worst one for scores of variance up to 1, the
    mean to 0.1 $\sigma'$; 0.15, a factor of 2, and 0.2 $\sigma'$ for variances up to 10; exact for plain scores
    Source: law of total variance; math.md, "Attention"
    """
    if dropout_p == 1:
        dropout_p, value = 0.0, _zero(value)
    if enable_gqa:
        key, value = _for_every_head(key, query), _for_every_head(value, query)
    gain = mean_of(query).shape[-1] ** -0.5 if scale is None else scale
    given = {
        "query": mean_of(query),
        "query_variance": variance_of(query) if is_random(query) else None,
        "key": mean_of(key),
        "key_variance": variance_of(key) if is_random(key) else None,
        "value": mean_of(value),
        "value_variance": variance_of(value) if is_random(value) else None,
        "mask": _as_summand(query, key, mean_of(attn_mask), is_causal),
        "mask_variance": variance_of(attn_mask) if is_random(attn_mask) else None,
    }

    def kernel(
        query: Tensor,
        query_variance: Tensor | None,
        key: Tensor,
        key_variance: Tensor | None,
        value: Tensor,
        value_variance: Tensor | None,
        mask: Tensor | None,
        mask_variance: Tensor | None,
    ) -> Moments:
        query = gain * query
        if query_variance is not None:
            query_variance = gain * gain * query_variance.contiguous()
        mean = product(query, key.mT)
        scores = kernels.scores(mean if mask is None else mean + mask, query, query_variance, key, key_variance)
        if mask_variance is not None:
            own = mask_variance.expand_as(mean)
            scores = scores._replace(private=own if scores.private is None else scores.private + own)
        return Moments(*kernels.mixture(scores, None, value, value_variance, dropout_p))

    some = some_value(query, key, value, attn_mask)
    half = some.dtype in (torch.float16, torch.bfloat16)
    mean, variance = in_pieces(kernel, given, torch.float32 if half else some.dtype)
    return some.of(mean.to(some.dtype), variance.to(some.dtype))


@rule("scaled_dot_product_attention", on=Mean)
def scaled_dot_product_attention_mean(
    query: Mean | Tensor,
    key: Mean | Tensor,
    value: Mean | Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Mean:
    r"""Attention of the means, without dropout.

    Error: exact
    Source: paper, AP1
    """
    q, k, v = (part.loc if isinstance(part, Mean) else part for part in (query, key, value))
    return Mean.of(
        F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    )


@composite("multi_head_attention_forward", on=Value, positional=True)
def multi_head_attention_forward(*args: Any, **kwargs: Any) -> tuple[Normal, Normal | None]:
    r"""Multi-head attention: runs torch's own function with values, or does the same in fewer steps.

    Query, key and value are projections of the same tokens, but the rule assumes that they are independent.

    Error: as `scaled_dot_product_attention`
    Source: `torch.nn.functional.multi_head_attention_forward`
    """
    found = _of_itself(*args, **kwargs)
    return OPENED["multi_head_attention_forward"](*args, **kwargs) if found is None else (found, None)


def _of_itself(
    query: Any,
    key: Any,
    value: Any,
    size: int,
    heads: int,
    weight: Any,
    bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout: float,
    out_weight: Any,
    out_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    is_causal: bool = False,
    **others: Any,
) -> Any:
    """Return the attention of a batch of random tokens to themselves, or None where more is asked for."""
    more = need_weights or add_zero_attn or use_separate_proj_weight or is_causal
    given = (key_padding_mask, attn_mask, bias_k, bias_v, others.get("static_k"), others.get("static_v"))
    if more or query is not key or key is not value or any([part is not None for part in given]):  # noqa: C419
        return None
    if not isinstance(query, Independent) or query.ndim != 3 or query.shape[-1] != size or size % heads:
        return None
    tokens: Any = query
    stride = query.loc.stride()
    by_tokens = stride[0] >= stride[1]  # what lies in memory as a batch stays one
    each = F.linear(tokens if by_tokens else tokens.transpose(0, 1), weight, bias).unflatten(-1, (3, heads, -1))
    q, k, v = each.permute(2, int(by_tokens), 3, int(not by_tokens), 4).contiguous().unbind(0)
    found = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout if training else 0.0)
    found = F.linear(found.permute((2, 0, 1, 3) if by_tokens else (0, 2, 1, 3)).flatten(2), out_weight, out_bias)
    return found if by_tokens else found.transpose(0, 1)


@rule("multi_head_attention_forward", on=Mean)
def multi_head_attention_forward_mean(*args: Any, **kwargs: Any) -> tuple[Mean, Mean | None]:
    r"""Multi-head attention of the means, without dropout.

    Error: exact
    Source: paper, AP1
    """
    return OPENED["multi_head_attention_forward"](*args, **kwargs)  # type: ignore[no-any-return]


@rule("_nested_tensor_from_mask_left_aligned", on=Certain)
@plain("_nested_tensor_from_mask_left_aligned", on=Value)
def nested_tensor_from_mask_left_aligned(input: Value, mask: Tensor) -> bool:
    r"""Always false: `nn.TransformerEncoder` asks whether it can use nested tensors, which values do not support.

    Error: exact
    Source: definition
    """
    return False


def _zero(value: Normal | Tensor) -> Any:
    return value.each(torch.zeros_like) if isinstance(value, Independent) else torch.zeros_like(value)


def _for_every_head(part: Any, query: Normal | Tensor) -> Any:
    """Repeat the keys or values of a group for each query head that shares them."""
    return part.repeat_interleave(query.shape[-3] // part.shape[-3], -3)


def _as_summand(query: Normal | Tensor, key: Normal | Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Return the mask as a summand of the scores: minus infinity where attention is not allowed."""
    if is_causal:
        if mask is not None:
            raise ValueError("attention takes either `attn_mask` or `is_causal=True`, not both")
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
