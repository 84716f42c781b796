r"""Nodes and weights of Gauss quadrature, as lists of Python numbers, computed once at import."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Nodes = list[tuple[float, float]]
"""Pairs of a node and its weight."""


def _from_recurrence(diagonal: Tensor, off_diagonal: Tensor, total: float) -> Nodes:
    """Golub and Welsch: the nodes are eigenvalues of the Jacobi matrix, the weights squared first components."""
    nodes, vectors = torch.linalg.eigh(
        torch.diag(diagonal) + torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    )
    return list(zip(nodes.tolist(), (total * vectors[0] ** 2).tolist(), strict=True))


def hermite(n: int) -> Nodes:
    r"""$\sum_i w_i f(z_i) \approx E f(Z)$ for standard normal $Z$."""
    k = torch.arange(1, n, dtype=torch.float64)
    return _symmetric(_from_recurrence(torch.zeros(n, dtype=torch.float64), k.sqrt(), 1.0))


def legendre(n: int) -> Nodes:
    r"""$\sum_i w_i f(x_i) \approx \int_0^1 f(x)\,dx$."""
    k = torch.arange(1, n, dtype=torch.float64)
    rule = _symmetric(_from_recurrence(torch.zeros(n, dtype=torch.float64), k / (4 * k**2 - 1).sqrt(), 2.0))
    return [((x + 1) / 2, w / 2) for x, w in rule]


def discretized(density: Callable[[Tensor], Tensor], low: float, high: float, n: int, points: int = 40_001) -> Nodes:
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


def _symmetric(rule: Nodes) -> Nodes:
    """Make a rule that is symmetric in theory exactly symmetric."""
    pairs = zip(rule, reversed(rule), strict=True)
    return [((x - y) / 2, (v + w) / 2) for (x, v), (y, w) in pairs]


HERMITE = {n: hermite(n) for n in (11, 40)}
LEGENDRE = {n: legendre(n) for n in (8, 10)}
GUMBEL = {n: discretized(lambda x: torch.exp(-x - torch.exp(-x)), -4.5, 40.0, n) for n in (6, 12)}
"""$\\sum_i w_i f(g_i) \\approx E f(G)$ for a standard Gumbel $G$."""

SQRT_2 = math.sqrt(2)
SQRT_2PI = math.sqrt(2 * math.pi)
