"""Attention of units that depend on each other, by its products and its softmax."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.values import Joint


@rule("scaled_dot_product_attention", on=Joint)
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    r"""Moments of $\operatorname{softmax}(QK^\top/\sqrt{d})V$, product by product.

    $E[XY] = \mu_X\mu_Y + \operatorname{Cov}(X, Y)$: where queries and keys, or weights and values, depend on the same
    noise, their covariance shifts the mean.

    Error: as softmax, and as nonlinear functions of dependent units
    Source: definition of attention
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = torch.matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=scores.dtype).masked_fill(~attn_mask, -math.inf)
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    return torch.matmul(F.dropout(weights, dropout_p) if dropout_p else weights, value)
