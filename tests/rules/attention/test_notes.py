"""Attention written out, by two products and a softmax, is attention in one call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from momentprop import Normal
from tests.rules.attention.inputs import MASKS, deviations, draws_of, heads, moments, seeded, written_out


@pytest.mark.parametrize("mask", ["none", "float", "minus_infinity", "lowest"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_written_out_is_attention_in_one_call(mask: str, dropout: float) -> None:
    parts = heads(0.5, torch.float64)
    at_once = F.scaled_dot_product_attention(*parts, MASKS[mask], dropout)
    written = written_out(*parts, MASKS[mask], dropout)
    assert torch.allclose(written.loc, at_once.loc, atol=1e-10)
    assert torch.allclose(written.variance, at_once.variance, rtol=1e-8)


def test_scores_need_not_be_a_product() -> None:
    g = seeded(0)
    scores = Normal(2 * torch.randn(6, 40, generator=g), 0.5 * torch.rand(6, 40, generator=g))
    value = Normal(torch.randn(40, 8, generator=g), 0.01)
    g = seeded(7)
    reference = moments(lambda: torch.softmax(draws_of(scores, 1000, g), -1) @ draws_of(value, 1000, g), 20)
    average, worst, off = deviations(torch.softmax(scores, -1) @ value, *reference)
    assert average < 0.01
    assert worst < 0.06
    assert off < 0.03
    weights = torch.softmax(scores, -1)
    independent = Normal(weights.loc, weights.variance) @ value
    assert deviations(independent, *reference)[1] > 0.1, "this would not tell the rule from independence"


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
    query, key, value = heads(0.5)
    expected = written_out(query, key, value)
    weights = F.softmax(torch.matmul(query, key.mT) * 0.5, -1)
    found = ({**KEEPING, **LOSING}[name](weights)) @ value
    assert torch.allclose(found.loc, expected.loc, atol=1e-6)
    assert torch.allclose(found.variance, expected.variance, rtol=1e-5) == (name in KEEPING)


def test_a_note_does_not_survive_pickling_or_flattening() -> None:
    import copy

    query, key, _ = heads(0.5)
    weights = torch.softmax(torch.matmul(query, key.mT), -1)
    assert weights.note is not None
    assert copy.deepcopy(weights).note is None
    assert torch.utils._pytree.tree_map(lambda part: part, weights).note is None


def test_scores_whose_query_was_overwritten_are_independent() -> None:
    query, key, value = heads(0.5)
    scores = torch.matmul(query[:], key.mT)
    as_it_was = torch.softmax(Normal(scores.loc.clone(), scores.variance.clone()), -1) @ value
    query.mul_(2.0)  # the slice above shares its memory
    found = torch.softmax(scores, -1) @ value
    assert torch.allclose(found.variance, as_it_was.variance, rtol=1e-5)


def test_half_precision_weights_are_computed_in_float32() -> None:
    parts = heads(0.1)
    expected = written_out(*parts)
    for found in (
        written_out(*(part.bfloat16() for part in parts)),
        F.scaled_dot_product_attention(*(part.bfloat16() for part in parts)),
    ):
        assert found.dtype == torch.bfloat16
        assert torch.allclose(found.loc.float(), expected.loc, atol=0.05)
        assert (found.variance.float() / expected.variance).log().abs().max() < 0.1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = F.scaled_dot_product_attention(*parts)
    assert torch.allclose(found.variance, expected.variance, rtol=1e-4)
