"""The grids on which the elementwise rules are measured, the true moments there, and the errors of the rules.

`python -m tests.grids` measures every case and writes the table of `docs/errors.md`.
"""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from momentprop import Normal
from tests.cases import CASES

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"


class Cells(NamedTuple):
    """Input moments on a grid and the true moments of the result, in float64; the inputs are exact in float32."""

    mean: np.ndarray
    variance: np.ndarray
    true_mean: np.ndarray
    true_variance: np.ndarray

    def input(self, dtype: torch.dtype) -> Normal:
        return Normal(torch.tensor(self.mean, dtype=dtype), torch.tensor(self.variance, dtype=dtype))

    def representable(self, dtype: torch.dtype) -> np.ndarray:
        largest = torch.finfo(dtype).max
        return (np.abs(self.true_mean) < largest) & (self.true_variance < largest)


def _grid(means, stds):
    mean, std = np.meshgrid(np.array(sorted(means)), np.array(sorted(stds)), indexing="ij")
    return mean.astype(np.float32).astype(float), (std**2).astype(np.float32).astype(float)


_DECADES = [10.0**k for k in range(-8, 9)]
_WIDE = _grid([0, *_DECADES, *(-mean for mean in _DECADES)], np.logspace(-8, 8, 33))
_CENTRAL = [0.001, 0.03, 0.1, 0.3, 0.5, 0.7, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30]
_SWITCHES = [0.15, 0.6, 0.75, 0.9, 1, 2, 6]  # where rules may change their formula
_REGULAR = _grid(
    [0, *_CENTRAL, *(-mean for mean in _CENTRAL)],
    [
        *np.logspace(-4, 3, 29),
        0.5,
        1.25,
        1.5,
        2.5,
        4,
        5,
        8,
        *(std * near for std in _SWITCHES for near in (0.99, 1, 1.01)),
    ],
)


_NEAR_STDS = (1e-4, 3e-4, 1.4e-3, 5e-3, 0.02, 0.1, 0.3, 1.0)
_NEAR_Z = (-6, -4, -3, -2, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 2, 3, 4, 6)


def _near(turns):
    """Means within a few deviations of each kink or minimum."""
    turn, std, z = np.meshgrid(turns or [0.0], _NEAR_STDS, _NEAR_Z, indexing="ij")
    return (turn + std * z).astype(np.float32).astype(float).ravel(), (std**2).astype(np.float32).astype(float).ravel()


@functools.cache
def cells_of(name: str, grid: str) -> Cells:
    case = next(case for case in CASES if case.name == name)
    mean, variance = _near(case.turns) if grid == "near" else {"wide": _WIDE, "regular": _REGULAR}[grid]
    return Cells(mean, variance, *case.truth(mean, variance))


@functools.cache
def result(name: str, grid: str, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    case = next(case for case in CASES if case.name == name)
    return moments_of(case(cells_of(name, grid).input(dtype)))


def moments_of(value: Normal) -> tuple[np.ndarray, np.ndarray]:
    return value.loc.detach().double().numpy(), value.variance.detach().double().numpy()


def errors(cells: Cells, mean: np.ndarray, variance: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The relative error of the deviation, and the error of the mean in true deviations, less its own rounding."""
    with np.errstate(all="ignore"):
        sigma = np.sqrt(cells.true_variance)
        rounding = 8 * torch.finfo(dtype).eps * np.abs(cells.true_mean)  # of a mean in this dtype
        return np.abs(np.sqrt(variance) / sigma - 1), np.maximum(np.abs(mean - cells.true_mean) - rounding, 0) / sigma


def counted(cells: Cells, grid: str, dtype: torch.dtype) -> np.ndarray:
    """The cells that count: those whose truth is known, can be represented and is not a vanishing tail."""
    std, sigma = np.sqrt(cells.variance), np.sqrt(cells.true_variance)
    if grid == "regular":
        return (sigma > 1e-4) & cells.representable(dtype)
    return (std > 1e-9 * np.abs(cells.mean)) & (sigma > 1e-5 * np.minimum(std, 1)) & cells.representable(dtype)


def error_of_the_oracle(cells: Cells) -> np.ndarray:
    """What the oracle itself cannot resolve, where a deviation is far smaller than its mean."""
    return 4 * np.finfo(float).eps * np.abs(cells.mean) / np.sqrt(cells.variance)


def _worst(name: str, dtype: torch.dtype) -> tuple[float, float]:
    """The largest error of deviation and mean over all grids, beyond what a docstring adds near a minimum."""
    found = []
    case = next(case for case in CASES if case.name == name)
    for grid in ("wide", "regular", "near"):
        cells = cells_of(name, grid)
        within = counted(cells, grid, dtype)
        slack = error_of_the_oracle(cells) if grid == "wide" else 0.0
        if grid == "near":
            slack = case.slack_at_minima(dtype) / np.sqrt(cells.variance)
        both = errors(cells, *result(name, grid, dtype), dtype)
        found.append([max(float(np.max(np.where(within, error - slack, 0.0))), 0.0) for error in both])
    return tuple(map(max, zip(*found, strict=True)))


def main() -> None:
    """Measure every case and write the page."""
    rows = []
    for case in CASES:
        single, double = _worst(case.name, torch.float32), _worst(case.name, torch.float64)
        numbers = " | ".join(f"{error:.0e}" if error > 1e-16 else "0" for error in (*single, *double))
        rows.append(f"| `{case.name}` | {case.rule.error} | {numbers} |")
        print(rows[-1])
    text = PAGE.read_text()
    head = text[: text.index("| operation |")]
    title = "| operation | stated error | f32 deviation | f32 mean | f64 deviation | f64 mean |"
    PAGE.write_text("\n".join([head.rstrip() + "\n", title, "|---|---|---|---|---|---|", *rows, ""]))


if __name__ == "__main__":
    main()
