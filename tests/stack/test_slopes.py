"""The derivatives of every rule on `Normal` in forward and reverse mode and under `vmap`, against finite differences.

Correlations are followed along these derivatives. A custom operator or autograd function may return a zero tangent
without an error, so every row of the rule table is walked, with the calls of `tests/examples.py`.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from momentprop import Normal, rules
from momentprop.dispatch import Kind, Rule
from tests.cases import CASES
from tests.examples import REFUSED, example
from tests.stack.compiling import tensors

ROWS = [row for row in rules.table() if issubclass(Normal, row.on) and row.op not in REFUSED]


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _is_differentiable(row: Rule) -> bool:
    return row.kind not in (Kind.PLAIN,) and example(row.op, row.on) is not None


@pytest.mark.parametrize("row", [row for row in ROWS if _is_differentiable(row)], ids=lambda row: row.op)
def test_derivatives_of_every_rule_agree_with_finite_differences(row: Rule) -> None:
    chosen = example(row.op, row.on)
    assert chosen is not None
    value = chosen.value(Normal)
    inputs = value.loc.detach(), value.variance.detach()

    def function(loc: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        return tuple(part for part in tensors(chosen.call(Normal.of(loc, variance))) if part.is_floating_point())

    generator = torch.Generator().manual_seed(1)
    along = [torch.randn(3, *part.shape, generator=generator) * scale for part, scale in zip(inputs, (1.0, 1e-3), strict=True)]
    if not chosen.positive:
        along[1] = along[1] * 50

    def at(k: float, i: int) -> tuple[Tensor, ...]:
        return function(*(x + k * 1e-3 * (1 if not chosen.positive else 0.1) * d[i] for x, d in zip(inputs, along, strict=True)))

    step = 1e-3 * (1 if not chosen.positive else 0.1)
    _, pull = torch.func.vjp(function, *inputs)
    pushed_together = torch.func.vmap(lambda *d: torch.func.jvp(function, inputs, d)[1], randomness="same")(*along)
    for i in range(3):
        direction = tuple(d[i] for d in along)
        outputs, pushed = torch.func.jvp(function, inputs, direction)
        stencil = zip(at(1, i), at(-1, i), at(2, i), at(-2, i), strict=True)
        wanted = [(8 * (a - b) - (c - d)) / (12 * step) for a, b, c, d in stencil]
        for found, together, true, output in zip(pushed, pushed_together, wanted, outputs, strict=True):
            close = {"rtol": 1e-5, "atol": 1e-5 * float(true.abs().max()) + 1e-9}
            torch.testing.assert_close(found, true, **close)
            torch.testing.assert_close(together[i], true, **close)
        weights = [torch.randn(output.shape, generator=generator) for output in outputs]
        pulled = pull(tuple(weights))
        product = sum((a * b).sum() for a, b in zip(pulled, direction, strict=True))
        true_product = sum((a * b).sum() for a, b in zip(weights, wanted, strict=True))
        size = sum((a * b).abs().sum() for a, b in zip(weights, wanted, strict=True))
        torch.testing.assert_close(product, true_product, rtol=0, atol=1e-5 * float(size) + 1e-9)
