r"""Embeddings: rows of a random table, and bags of rows."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, Operand, rule
from momentprop.dispatch import where as place
from momentprop.dispatch.registry import linear, moves, transpose
from momentprop.rules.linear.by_rule import squares_by_rule
from momentprop.rules.precision import in_range
from momentprop.values import Independent, Normal
from momentprop.values.moments import is_random, mean_of, some_value


def _refuse_max_norm(op: str, max_norm: float | None) -> None:
    if max_norm is not None:
        raise MissingRule(
            f"no rule for {op!r} with `max_norm` at {place()}: it would rescale a random table in place; leave it out, "
            "or use method='sample'"
        )


def _rows(call: Call) -> Kind:
    _refuse_max_norm("embedding", call.given("max_norm"))
    return Kind.MOVES


moves(
    "embedding", on=Normal, plain=F.embedding, parameters="input weight padding_idx max_norm norm_type", copies=True,
    positional=True, decide=_rows,
)  # fmt: skip


@transpose("embedding")
def embedding_transposed(call: Call, gradient: Tensor) -> Tensor:
    """Add up what came from every row; a padding row counts like the others, for it enters the result."""
    table, index = call.given("weight"), call.given("input")
    return gradient.new_zeros(table.shape).index_add(0, index.flatten(), gradient.reshape(-1, table.shape[1]))


def _by_weights(call: Call) -> Kind:
    """Return the kind: linear in the table or in the sample weights, mixing in both together."""
    _refuse_max_norm("embedding_bag", call.given("max_norm"))
    if call.given("mode", "mean") == "max":
        raise MissingRule(
            f"no rule for 'embedding_bag' with `mode='max'` at {place()}: choose 'sum' or 'mean', or use "
            "method='sample'"
        )
    both = isinstance(call.given("weight"), Operand) and isinstance(call.given("per_sample_weights"), Operand)
    return Kind.MIXING if both else Kind.LINEAR


_BAG = (
    "input weight offsets max_norm norm_type scale_grad_by_freq mode sparse per_sample_weights include_last_offset "
    "padding_idx"
)
linear(
    "embedding_bag", on=Normal, plain=F.embedding_bag, parameters=_BAG, decide=_by_weights, by_squares=squares_by_rule
)


@rule("embedding_bag", on=Normal)
@in_range
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
) -> Any:
    r"""Moments of the sums or means of bags of rows, where the table or the sample weights can be random.

    Error: exact for rows that occur once in a bag and independent weights
    Source: paper, eq. linear and "Product"
    """

    def bag(table: Tensor, samples: Tensor | None = None, how: str = "sum") -> Tensor:
        return F.embedding_bag(
            input, table, offsets, None, norm_type, scale_grad_by_freq, how, sparse, samples, include_last_offset,
            padding_idx,
        )  # fmt: skip

    table, samples = mean_of(weight), mean_of(per_sample_weights)
    value, loc = some_value(weight, per_sample_weights), bag(table, samples, mode)
    variance = torch.zeros_like(loc)
    if isinstance(weight, Independent):
        variance = variance + bag(weight.variance, None if samples is None else samples * samples)
    if is_random(per_sample_weights):
        table_squares = table * table + (weight.variance if isinstance(weight, Independent) else 0.0)
        variance = variance + bag(table_squares, per_sample_weights.variance)
    if mode == "mean":
        count = bag(torch.ones_like(table[:, :1])).clamp(min=1)
        variance = variance / (count * count)
    return value.of(loc, variance)


@transpose("embedding_bag")
def embedding_bag_transposed(call: Call, gradient: Tensor) -> Tensor:
    """Give every row, or every sample's weight, the worth of the bags that it is in."""
    table, index, samples = call.given("weight"), call.given("input"), call.given("per_sample_weights")
    rows, bags = index.flatten(), _bags(call)
    counted = torch.ones_like(rows) if call.given("padding_idx") is None else rows != call.given("padding_idx")
    worth = gradient[bags] * counted[:, None]  # shape: (samples, features)
    if isinstance(samples, Operand):
        return torch.sum(worth * table[rows], 1).reshape(index.shape)
    if samples is not None:
        worth = worth * samples.reshape(-1, 1)
    if call.given("mode", "mean") == "mean":
        sizes = torch.zeros_like(gradient[:, 0]).index_add(0, bags, counted.to(gradient.dtype))
        worth = worth / sizes[bags, None].clamp(min=1)
    return gradient.new_zeros(table.shape).index_add(0, rows, worth)


def _bags(call: Call) -> Tensor:
    """Return the bag that each sample is in."""
    index, offsets = call.given("input"), call.given("offsets")
    if offsets is None:
        return torch.arange(len(index), device=index.device).repeat_interleave(index.shape[1])
    if call.given("include_last_offset", False):
        offsets = offsets[:-1]
    places = torch.arange(len(index), device=index.device)
    return torch.searchsorted(offsets.to(places.dtype), places, right=True) - 1
