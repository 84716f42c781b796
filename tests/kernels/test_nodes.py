"""The frozen quadratures are those that `tests.quadratures` computes."""

from collections.abc import Iterator
from typing import Any

import pytest

from momentprop.kernels import nodes
from tests.quadratures import computed


def _tables(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, tables in found.items():
        if isinstance(tables, dict):
            yield from ((f"{name}[{key}]", rows) for key, rows in tables.items())
        else:
            yield name, tables


def test_the_frozen_quadratures_are_the_computed_ones() -> None:
    anew = computed()
    frozen = dict(_tables({name: getattr(nodes, name) for name in anew}))
    assert list(frozen) == [name for name, _ in _tables(anew)]
    for name, rows in _tables(anew):
        assert len(frozen[name]) == len(rows), name
        for kept, row in zip(frozen[name], rows, strict=True):
            assert kept == pytest.approx(row, rel=1e-12, abs=1e-15), name


@pytest.mark.parametrize("n", nodes.HERMITE)
def test_the_hermite_rules_are_exact_for_polynomials(n: int) -> None:
    for power, moment in {0: 1, 1: 0, 2: 1, 3: 0, 4: 3, 6: 15, 8: 105, 10: 945}.items():
        assert sum(w * z**power for z, w in nodes.HERMITE[n]) == pytest.approx(moment, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("n", nodes.LEGENDRE)
def test_the_legendre_rules_are_exact_for_polynomials(n: int) -> None:
    for power in range(2 * n):
        assert sum(w * x**power for x, w in nodes.LEGENDRE[n]) == pytest.approx(1 / (power + 1), rel=1e-12)
