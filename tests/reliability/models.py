"""Defects of whole models: what they return, what they call, and by which names."""

import collections
from dataclasses import dataclass
from typing import Any

import torch

from momentprop import Estimate, propagate
from tests.reliability.rows import row


@dataclass
class Out:
    y: Any


@row(8, "`sample` with a plain dataclass as output gives one draw", "`Sample`")
def dataclass_of_draws() -> str:
    """Whatever holds a draw, holds an estimate in the end."""
    found = propagate(lambda x: Out(2 * x), torch.ones(3), input_variance=1.0, method="sample", samples=400, seed=0).y
    assert type(found) is Estimate
    assert torch.allclose(found.variance, torch.full((3,), 4.0), rtol=0.3)
    return f"`{type(found).__name__}` of variance {found.variance.mean():.2f}"


class OneField(collections.OrderedDict):  # type: ignore[type-arg]
    """As an output of Hugging Face, whose constructor iterates over its only field."""

    def __init__(self, y: Any) -> None:
        super().__init__(y=y)
        self.y = y
        iter(y)


@row(8, "`sample` on outputs of Hugging Face with one field", "no Estimate rule for 'unbind'")
def output_of_one_field() -> str:
    """An output is copied, not constructed anew."""
    found = propagate(lambda x: OneField(2 * x), torch.ones(3), input_variance=1.0, method="sample", samples=50, seed=0)
    assert type(found.y) is type(found["y"]) is Estimate
    return f"`{type(found.y).__name__}`"
