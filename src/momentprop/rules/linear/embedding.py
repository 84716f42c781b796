r"""Embeddings: rows of a random table, and bags of them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import MissingRule, rule
from momentprop.dispatch import where as place
from momentprop.rules.linear.products import some_value
from momentprop.values import Normal
from momentprop.values.moments import is_random, mean_of


def _refuse_max_norm(op: str, max_norm: float | None) -> None:
    if max_norm is not None:
        raise MissingRule(f"no rule for {op!r} with `max_norm` at {place()}: it would rescale a random table in place")


@rule("embedding", on=Normal)
def embedding(
    input: Tensor,
    weight: Normal,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Normal:
    r"""Rows of a random table, chosen by plain indices.

    Error: exact (copies of one row are treated as independent from then on)
    Source: definition
    """
    _refuse_max_norm("embedding", max_norm)
    return weight.each(  # type: ignore[no-any-return]
        lambda part: F.embedding(input, part, padding_idx, None, norm_type, scale_grad_by_freq, sparse)
    )


@rule("embedding_bag", on=Normal)
def embedding_bag(
    input: Tensor,
    weight: Normal | Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Normal:
    r"""Moments of the sums or means of bags of rows, where the table or the weights of the samples may be random.

    Error: exact for rows that occur once in a bag and independent weights
    Source: paper, eq. linear and "Product"
    """
    _refuse_max_norm("embedding_bag", max_norm)
    if mode == "max":
        raise MissingRule(f"no rule for 'embedding_bag' with `mode='max'` at {place()}")

    def bag(table: Tensor, samples: Tensor | None = None, how: str = "sum") -> Tensor:
        return F.embedding_bag(
            input, table, offsets, None, norm_type, scale_grad_by_freq, how, sparse, samples, include_last_offset,
            padding_idx,
        )  # fmt: skip

    table, samples = mean_of(weight), mean_of(per_sample_weights)
    value, loc = some_value(weight, per_sample_weights), bag(table, samples, mode)
    variance = torch.zeros_like(loc)
    if isinstance(weight, Normal):
        variance = variance + bag(weight.variance, None if samples is None else samples * samples)
    if is_random(per_sample_weights):
        table_squares = table * table + (weight.variance if isinstance(weight, Normal) else 0.0)
        variance = variance + bag(table_squares, per_sample_weights.variance)
    if mode == "mean":
        count = bag(torch.ones_like(table[:, :1])).clamp(min=1)
        variance = variance / (count * count)
    return value.of(loc, variance)
