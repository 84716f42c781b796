"""Embeddings, and bags of them."""

import pytest
import torch
import torch.nn.functional as F

from momentprop import Normal
from momentprop.dispatch import MissingRule


def _values(shapes: list[tuple[int, ...]]) -> list[Normal]:
    generator = torch.Generator().manual_seed(3)
    return [
        Normal(*(draw(shape, generator=generator, dtype=torch.float64) for draw in (torch.randn, torch.rand)))
        for shape in shapes
    ]


def test_a_bag_of_embeddings_is_a_product_of_rows_and_weights() -> None:
    table, weights = _values([(8, 2), (2, 3)])
    rows = torch.arange(6).reshape(2, 3)
    for w in (weights, weights.loc):
        for t in (table, table.loc):
            if isinstance(w, Normal) or isinstance(t, Normal):
                y = F.embedding_bag(rows, t, mode="sum", per_sample_weights=w)
                z = torch.einsum("br,brf->bf", w, t[rows])
                torch.testing.assert_close((y.loc, y.variance), (z.loc, z.variance))


def test_embeddings_with_max_norm_or_a_maximum_have_no_rule() -> None:
    table = _values([(4, 3)])[0]
    with pytest.raises(MissingRule, match="'embedding' with `max_norm`"):
        F.embedding(torch.tensor([1]), table, max_norm=1.0)
    with pytest.raises(MissingRule, match="'embedding_bag' with `max_norm`"):
        F.embedding_bag(torch.tensor([[1]]), table, max_norm=1.0)
    with pytest.raises(MissingRule, match="`mode='max'`"):
        F.embedding_bag(torch.tensor([[1]]), table, mode="max")
