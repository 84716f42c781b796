"""The derivatives of every rule on `Normal` in forward and reverse mode and under `vmap`, against finite differences.

Correlations are followed along these derivatives. A custom operator or autograd function may return a zero tangent
without an error, so every row of the rule table is walked, with the calls of `tests/examples.py`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from momentprop import Normal, rules
from momentprop.dispatch import Kind, Rule
from tests import examples
from tests.examples import REFUSED, example
from tests.stack.compiling import tensors

Function = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
DIRECTIONS, STEP = 2, 1e-4
EXACT, CLOSE = (1e-7, 1e-8), (2e-3, 1e-4)
"""Errors relative to the largest derivative, and more; a quadrature whose nodes move has an error of its own."""
ROWS = [row for row in rules.table() if issubclass(Normal, row.on) and row.op not in REFUSED]


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


NOT_FOLLOWED = {"detach", "bfloat16", "half", "float", "type", "type_as"}
"""Operations that cut derivatives, or whose results are too coarse for differences."""
NO_FORWARD_MODE = {"embedding_bag", "grid_sample"}
"""Operations for which torch has no forward mode, and says so."""
SAME_CODE = re.compile("[13]d$|^lstm$|^gru$|^rnn_tanh$")
DIFFERENTIABLE = [
    row for row in ROWS if row.kind != Kind.PLAIN and row.op not in NOT_FOLLOWED and example(row.op, row.on)
]


def _marked(row: Rule) -> Any:
    """A row, for `make test-full` only if it moves elements or runs the code of another one."""
    wide = row.kind == Kind.MOVES or SAME_CODE.search(row.op)
    return pytest.param(row, id=f"{row.op}-{row.on.__name__}", marks=[pytest.mark.full] if wide else [])


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("row", [_marked(row) for row in DIFFERENTIABLE])
def test_derivatives_of_every_rule_agree_with_finite_differences(row: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "other", _other)
    chosen = example(row.op, row.on)
    assert chosen is not None
    value = chosen.value(Normal)
    inputs = value.loc.detach(), value.variance.detach()

    def function(loc: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        return tuple(part for part in tensors(chosen.call(Normal.of(loc, variance))) if part.dtype == torch.float64)

    along = tuple(_random(1, DIRECTIONS, *part.shape) * part.mean() for part in inputs)
    wanted = [_differences(function, inputs, tuple(part[i] for part in along)) for i in range(DIRECTIONS)]
    allowed = EXACT if "exact" in row.error else CLOSE
    _check_pullback(function, inputs, along, wanted, allowed)
    if row.op in NO_FORWARD_MODE:
        with pytest.raises(NotImplementedError, match="forward AD"):
            torch.func.jvp(function, inputs, tuple(part[0] for part in along))
        return
    pushed = torch.func.vmap(lambda *some: torch.func.jvp(function, inputs, some)[1], randomness="same")(*along)
    for i, true in enumerate(wanted):
        alone = torch.func.jvp(function, inputs, tuple(part[i] for part in along))[1]
        for found in (alone, [part[i] for part in pushed]):
            for a, b in zip(found, true, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=allowed[0] * float(b.abs().max()) + allowed[1])


def _other(x: Any) -> Any:
    """Another value, which moves with the first."""
    return x.of(*(getattr(x, name).flip(0) for name in x.components))


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _differences(function: Function, inputs: tuple[Tensor, ...], along: tuple[Tensor, ...]) -> list[Tensor]:
    def at(k: int) -> tuple[Tensor, ...]:
        return function(*(x + k * STEP * d for x, d in zip(inputs, along, strict=True)))

    return [(8 * (a - b) - (c - d)) / (12 * STEP) for a, b, c, d in zip(at(1), at(-1), at(2), at(-2), strict=True)]


def _check_pullback(
    function: Function,
    inputs: tuple[Tensor, ...],
    along: tuple[Tensor, ...],
    wanted: list[list[Tensor]],
    allowed: tuple[float, float],
) -> None:
    outputs, pull = torch.func.vjp(function, *inputs)
    weights = [_random(2 + i, *output.shape) for i, output in enumerate(outputs)]
    pulled = pull(tuple(weights))
    for i, true in enumerate(wanted):
        found = sum(float((a * part[i]).sum()) for a, part in zip(pulled, along, strict=True))
        terms = [float(term) for a, b in zip(weights, true, strict=True) for term in (a * b).flatten()]
        assert abs(found - sum(terms)) <= allowed[0] * sum(map(abs, terms)) + allowed[1]
