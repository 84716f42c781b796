r"""The quadratures of `kernels.nodes`, computed anew; write them down again with `python -m tests.quadratures`.

They are frozen, so that an import computes nothing, every machine has the same digits, and compilers see constants.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.kernels.gated import GELU_TANH, MISH, SILU
from momentprop.kernels.tails import cdf

Rows = tuple[tuple[float, ...], ...]

FROZEN = Path(__file__).parents[1] / "src" / "momentprop" / "kernels" / "nodes.py"
_MARK = "# Written by `python -m tests.quadratures`.\n"

HERMITE = (8, 11, 12, 21, 23, 27, 40)
LEGENDRE = (8, 10, 24)
GUMBEL = (6, 12)
CORRELATIONS = 6
REMAINDERS: Mapping[str, tuple[Callable[[Tensor], Tensor], float, int]] = {
    "gelu": (lambda x: x * cdf(x), 8.0, 9),
    "gelu_tanh": (GELU_TANH.value, 8.0, 10),
    "softplus": (partial(F.softplus, threshold=50.0), 22.0, 13),
    "silu": (SILU.value, 22.0, 14),
    "mish": (MISH.value, 22.0, 14),
    "hardswish": (F.hardswish, 3.0, 8),
}
"""A smooth rectifier, the reach of its remainder on either side of zero, and the number of nodes there."""


def hermite(n: int) -> Rows:
    k = torch.arange(1, n, dtype=torch.float64)
    return _symmetric(_from_recurrence(torch.zeros(n, dtype=torch.float64), k.sqrt(), 1.0))


def legendre(n: int) -> Rows:
    k = torch.arange(1, n, dtype=torch.float64)
    rule = _symmetric(_from_recurrence(torch.zeros(n, dtype=torch.float64), k / (4 * k**2 - 1).sqrt(), 2.0))
    return tuple(((x + 1) / 2, w / 2) for x, w in rule)


def gumbel(n: int) -> Rows:
    return discretized(lambda x: torch.exp(-x - torch.exp(-x)), -4.5, 40.0, n)


def correlations(n: int) -> Rows:
    return discretized(lambda r: 1 - r, 0.0, 1.0, n)


def remainder(function: Callable[[Tensor], Tensor], span: float, nodes: int) -> Rows:
    return _on_side(function, -1.0, span, nodes) + _on_side(function, 1.0, span, nodes)


def _on_side(function: Callable[[Tensor], Tensor], side: float, span: float, nodes: int) -> Rows:
    def gap(x: Tensor) -> Tensor:
        return function(side * x) - torch.relu(side * x)

    table = []
    for x, weight in discretized(lambda x: gap(x).abs(), 0.0, span, nodes, points=10_001):
        at = torch.tensor(x, dtype=torch.float64)
        signed = math.copysign(weight, gap(at).item())
        table.append((side * x, signed, signed * (function(side * at) + torch.relu(side * at)).item()))
    return tuple(table)


def discretized(density: Callable[[Tensor], Tensor], low: float, high: float, n: int, points: int = 40_001) -> Rows:
    r"""$\sum_i w_i f(x_i) \approx \int f(x)\,\mathrm{density}(x)\,dx$ by Lanczos on a fine midpoint grid."""
    step = (high - low) / points
    x = low + step * (torch.arange(points, dtype=torch.float64) + 0.5)
    mass = density(x) * step
    basis = [(mass / mass.sum()).sqrt()]
    diagonal, off_diagonal = [], []
    for k in range(n):
        vector = x * basis[k]
        diagonal.append(basis[k] @ vector)
        for _ in range(2):  # orthogonalize twice: once loses digits
            for known in basis:
                vector = vector - (known @ vector) * known
        if k < n - 1:
            off_diagonal.append(vector.norm())
            basis.append(vector / off_diagonal[-1])
    return _from_recurrence(torch.stack(diagonal), torch.stack(off_diagonal), float(mass.sum()))


def _from_recurrence(diagonal: Tensor, off_diagonal: Tensor, total: float) -> Rows:
    """Golub and Welsch: the nodes are eigenvalues of the Jacobi matrix, the weights squared first components."""
    nodes, vectors = torch.linalg.eigh(
        torch.diag(diagonal) + torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    )
    return tuple(zip(nodes.tolist(), (total * vectors[0] ** 2).tolist(), strict=True))


def _symmetric(rule: Rows) -> Rows:
    """Make a rule that is symmetric in theory exactly symmetric."""
    pairs = zip(rule, reversed(rule), strict=True)
    return tuple(((x - y) / 2, (v + w) / 2) for (x, v), (y, w) in pairs)


def computed() -> dict[str, Any]:
    """Return all of them by the names they have in `kernels.nodes`."""
    return {
        "HERMITE": {n: hermite(n) for n in HERMITE},
        "LEGENDRE": {n: legendre(n) for n in LEGENDRE},
        "GUMBEL": {n: gumbel(n) for n in GUMBEL},
        "CORRELATIONS": correlations(CORRELATIONS),
        "REMAINDERS": {name: remainder(*how) for name, how in REMAINDERS.items()},
    }


def _written(name: str, tables: Any) -> str:
    body = _dictionary(tables) if isinstance(tables, dict) else _rows(tables, "")
    return f"{name}: {_type(tables)} = {body}"


def _type(tables: Any) -> str:
    if not isinstance(tables, dict):
        return "Nodes"
    key = next(iter(tables))
    return "dict[str, Remainder]" if isinstance(key, str) else "dict[int, Nodes]"


def _dictionary(tables: Mapping[Any, Rows]) -> str:
    entries = (f"    {_key(key)}: {_rows(rows, '    ')},\n" for key, rows in tables.items())
    return "{\n" + "".join(entries) + "}"


def _key(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else str(key)


def _rows(rows: Sequence[tuple[float, ...]], indent: str) -> str:
    return "(\n" + "".join(f"{indent}    {row},\n" for row in rows) + f"{indent})"


def _freeze() -> None:
    head, mark, _ = FROZEN.read_text(encoding="utf-8").partition(_MARK)
    tables = "\n\n".join(_written(name, tables) for name, tables in computed().items())
    FROZEN.write_text(f"{head}{mark}\n{tables}\n", encoding="utf-8")


if __name__ == "__main__":
    _freeze()
