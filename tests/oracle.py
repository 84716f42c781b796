r"""True moments of $f(X)$ for normal $X$, computed without the library.

A function is written once as `f(x, fn)`, where `fn` is `FLOAT` (numpy and scipy) or `EXACT` (mpmath). `moments` works
in float64 on arrays of cells, `golden_moments` in 30 digits on one cell. Golden cells of every case are frozen in
`golden.json`; after a new line in `tests/cases.py` write them with

    python -m tests.oracle          # the cases that have none yet
    python -m tests.oracle --all    # every case anew (some minutes)
"""

import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
from scipy import special

GOLDEN = Path(__file__).with_name("golden.json")
GOLDEN_CELLS = (  # mean and standard deviation
    (0.0, 1e-6), (1e-3, 1e-3), (-3.0, 1e-2), (0.7, 0.3), (-0.7, 0.3), (-1.5, 0.6), (-6.0, 0.9), (0.0, 1.0), (2.0, 1.0),
    (-2.0, 1.0), (30.0, 1.0), (9.0, 2.0), (-12.0, 2.0), (3.0, 6.0), (5.0, 30.0), (-5.0, 30.0), (1.0, 1e4),
)  # fmt: skip

FLOAT = SimpleNamespace(
    **{name: getattr(np, name) for name in "exp expm1 log1p tanh sin cos sqrt maximum minimum where".split()},
    abs=np.abs,
    arctan=np.arctan,
    clip=np.clip,
    erf=special.erf,
    ndtr=special.ndtr,
    expit=special.expit,
    softplus=lambda x: np.logaddexp(0, x),
    round=np.round,
)
EXACT = SimpleNamespace(
    **{name: getattr(mpmath, name) for name in "exp expm1 log1p tanh sin cos sqrt erf".split()},
    abs=abs,
    arctan=mpmath.atan,
    clip=lambda x, low, high: min(max(x, low), high),
    maximum=max,
    minimum=min,
    where=lambda condition, a, b: a if condition else b,
    ndtr=mpmath.ncdf,
    expit=lambda x: 1 / (1 + mpmath.exp(-x)) if x > 0 else mpmath.exp(x) / (1 + mpmath.exp(x)),
    softplus=lambda x: mpmath.log1p(mpmath.exp(-abs(x))) + max(x, 0),
    round=mpmath.nint,
)

Function = Callable[[Any, Any], Any]

_REACH = 20.0  # in standard deviations; the density beyond is below 1e-87
_Z = np.concatenate([np.arange(-_REACH, -8), np.arange(-8, 8, 0.5), np.arange(8, _REACH + 1)])
# Panels round a kink or the centre of a smooth unit: fine where such functions bend, then doubling.
_STEPS = np.concatenate([np.arange(0.5, 12, 0.5), np.arange(12, 40), 40 * 2.0 ** np.arange(28)])
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_SMALL = 1e-3  # below this deviation a function that is smooth at unit scale equals its Taylor polynomial
_ORDER = 6


def moments(f: Function, mean: Any, variance: Any, kinks: tuple[float, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of `f(X)` on arrays of cells, accurate to 1e-10 unless a cell is ill-conditioned."""
    mean, std = np.broadcast_arrays(np.asarray(mean, float), np.sqrt(np.asarray(variance, float)))
    shape, mean, std = mean.shape, mean.ravel(), std.ravel()
    clear = np.min([np.abs(mean - kink) for kink in kinks] or [np.full(mean.shape, np.inf)], axis=0)
    local = (std <= _SMALL) & (clear > _REACH * std)
    result = np.empty((2, mean.size))
    result[:, local] = _by_taylor(f, mean[local], std[local])
    result[:, ~local] = _by_panels(f, mean[~local], std[~local], kinks)
    return result[0].reshape(shape), result[1].reshape(shape)


def _by_panels(f: Function, mean: np.ndarray, std: np.ndarray, kinks: tuple[float, ...]) -> np.ndarray:
    """Composite Gauss-Legendre; `f(x) - f(mean)` is integrated, so that a small deviation does not cancel."""
    panels = _Panels(mean, std, kinks)
    with np.errstate(over="ignore", under="ignore"):
        base = np.asarray(f(mean, FLOAT), float)
        rise = f(panels.x, FLOAT) - base[panels.cell, None]
        shift = panels.mean(rise)
        return np.stack([base + shift, panels.mean((rise - shift[panels.cell, None]) ** 2)])


def slopes(f: Function, mean: Any, variance: Any, kinks: tuple[float, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    r"""$E f'(X)$ and $E f''(X)$ on arrays of cells, by Stein's lemma: $E[f Z]/\sigma$ and $E[f (Z^2 - 1)]/\sigma^2$."""
    mean, std = np.broadcast_arrays(np.asarray(mean, float), np.sqrt(np.asarray(variance, float)))
    panels = _Panels(mean, std, kinks)
    with np.errstate(over="ignore", under="ignore"):
        rise = f(panels.x, FLOAT) - np.asarray(f(mean, FLOAT), float)[panels.cell, None]
        return panels.mean(rise * panels.z) / std, panels.mean(rise * (panels.z**2 - 1)) / std**2


class _Panels:
    """Nodes of composite Gauss-Legendre quadrature for cells of one dimension, with edges at the kinks."""

    def __init__(self, mean: np.ndarray, std: np.ndarray, kinks: tuple[float, ...]) -> None:
        centres = np.array(sorted({0.0, *kinks}))
        steps = np.concatenate([-_STEPS, [0.0], _STEPS])
        marks = np.broadcast_to((centres[:, None] + steps).ravel(), (mean.size, centres.size * steps.size))
        edges = np.concatenate([mean[:, None] + std[:, None] * _Z, marks], axis=1)
        edges = np.sort(np.clip(edges, (mean - _REACH * std)[:, None], (mean + _REACH * std)[:, None]), axis=1)
        self.cell, panel = np.nonzero(np.diff(edges, axis=1) > 0)
        left, right = edges[self.cell, panel], edges[self.cell, panel + 1]
        half = (right - left)[:, None] / 2
        self.x = (right + left)[:, None] / 2 + half * _NODES
        self.z = (self.x - mean[self.cell, None]) / std[self.cell, None]
        self.weight = half * _WEIGHTS * np.exp(-(self.z**2) / 2)
        self.cells = mean.size
        self.mass = self._total(self.weight)

    def _total(self, terms: np.ndarray) -> np.ndarray:
        return np.bincount(self.cell, terms.sum(1), minlength=self.cells)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The expectation in every cell of what has these values at the nodes."""
        return self._total(self.weight * values) / self.mass


def _by_taylor(f: Function, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    base, *terms = np.array([_taylor(f, m) for m in mean]).reshape(-1, _ORDER + 1).T
    terms = [term * std**k for k, term in enumerate(terms, 1)]
    even = [float(special.factorial2(k - 1)) if k % 2 == 0 else 0.0 for k in range(1, 2 * _ORDER + 1)]  # E Z^k
    shift = sum(a * even[j] for j, a in enumerate(terms))
    spread = sum(
        a * b * (even[j + k + 1] - even[j] * even[k]) for j, a in enumerate(terms) for k, b in enumerate(terms)
    )
    return np.stack([base + shift, spread])


@functools.cache
def _taylor(f: Function, mean: float) -> list[float]:
    with mpmath.workdps(40):
        return [float(term) for term in mpmath.taylor(lambda x: f(x, EXACT), mpmath.mpf(mean), _ORDER)]


def slope(f: Function, x: np.ndarray) -> np.ndarray:
    """The derivative of `f` away from its kinks."""
    return np.array([_taylor(f, point)[1] for point in x])


def golden_moments(f: Function, mean: float, std: float, kinks: tuple[float, ...] = ()) -> tuple[float, float]:
    """Mean and variance of `f(X)` by adaptive quadrature, in 30 digits and as many more as a small variance needs."""
    result = _adaptive(f, mean, std, kinks, 30)
    if 0 < result[1] < 1e-15:
        result = _adaptive(f, mean, std, kinks, min(100, 30 - int(math.log10(result[1]))))
    return result


def _adaptive(f: Function, mean: float, std: float, kinks: tuple[float, ...], digits: int) -> tuple[float, float]:
    with mpmath.workdps(digits):
        mu, sigma = mpmath.mpf(mean), mpmath.mpf(std)
        marks = {mu + sigma * z for z in range(-40, 41, 2)}
        marks |= {centre + sign * 2.0**k for centre in (0.0, *kinks) for k in range(-1, 20) for sign in (-1, 1)}
        marks = sorted(x for x in marks | {0.0, *kinks} if abs(x - mu) <= 40 * sigma)

        def expectation(g: Callable[[Any], Any]) -> Any:
            return mpmath.quad(lambda x: g(x) * mpmath.npdf(x, mu, sigma), marks, method="gauss-legendre")

        centre = expectation(lambda x: f(x, EXACT))
        return float(centre), float(expectation(lambda x: (f(x, EXACT) - centre) ** 2))


def golden() -> dict[str, list[list[float]]]:
    """The frozen cells of each case: rows of mean, standard deviation, and mean and variance of the result."""
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def _freeze(everything: bool) -> None:
    from tests.cases import CASES

    known = {} if everything else golden()
    rows = {}
    for case in CASES:
        if case.name not in known:
            print(case.name, flush=True)
        rows[case.name] = known.get(case.name) or [
            [mean, std, *golden_moments(case.f, mean, std, case.kinks)]
            for mean, std in GOLDEN_CELLS
            if std <= case.golden_reach
        ]
    lines = (f"{json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, cells)) + "]" for name, cells in rows.items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    _freeze("--all" in sys.argv[1:])
