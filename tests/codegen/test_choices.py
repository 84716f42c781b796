"""A condition that splits the work is found, and blocks of elements give what the whole formula gives."""

import pytest
import torch
from torch import Tensor

from momentprop.codegen import c_library
from momentprop.codegen.choices import assuming, worth_asking
from momentprop.codegen.formula import Formula
from tests.codegen.conftest import needs_compiler, recorded


def _long(x: Tensor, times: int) -> Tensor:
    for _ in range(times):
        x = torch.tanh(x) + 0.5
    return x


def _two_sided(x: Tensor, y: Tensor) -> list[Tensor]:
    near = y <= 1.0
    return [torch.where(near, _long(x, 15), _long(x * y, 12)), torch.where(near, x, y)]


def _ops(formula: Formula) -> list[str]:
    return [step.op for step in formula.steps]


def test_a_condition_between_two_long_sides_is_worth_asking():
    formula = recorded(_two_sided, 2)
    condition = worth_asking(formula)
    assert condition is not None
    assert formula.steps[condition - 2].op == "le"
    assert _ops(assuming(formula, condition, True)).count("tanh") == 15
    assert _ops(assuming(formula, condition, False)).count("tanh") == 12


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: [torch.where(y <= 1.0, _long(x, 30), x)],  # one side saves nothing
        lambda x, y: [torch.where(y <= 1.0, x.exp(), y.exp())],  # short
        lambda x, y: [_long(x, 30)],
    ],
    ids=["one long side", "short", "no choice"],
)
def test_others_are_not(function):
    assert worth_asking(recorded(function, 2)) is None


@needs_compiler
def test_blocks_of_all_three_sorts_compute_the_formula(folder):
    formulas = [recorded(_two_sided, 2)]
    source = c_library.source_of(formulas)
    place = c_library.place_of(source)
    c_library.build(source, place)
    (call,) = c_library.load(place, formulas)
    x = torch.randn(1000, generator=torch.manual_seed(0))
    y = torch.rand(1000, generator=torch.manual_seed(1))
    for spread in (y, y + 1.5, 2 * y, torch.cat((y[:300], y[300:] + 1.5))):
        torch.testing.assert_close(call(x, spread), _two_sided(x, spread))
