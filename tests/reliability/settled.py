"""Defects that were mended with the table of kinds."""

import torch

from momentprop import Normal
from tests.reliability.rows import row


@row(20, "`x.where(cond, y)`", "AssertionError")
def where_as_a_method() -> str:
    """The condition chooses element by element."""
    x = Normal(torch.tensor([1.0, 2.0]), 0.5)
    chosen = x.where(torch.tensor([True, False]), torch.zeros(2))
    assert chosen.loc.tolist() == [1.0, 0.0]
    assert chosen.variance.tolist() == [0.5, 0.0]
    return f"mean {chosen.loc.tolist()}, variance {chosen.variance.tolist()}"
