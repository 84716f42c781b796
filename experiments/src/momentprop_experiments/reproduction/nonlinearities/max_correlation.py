r"""The leaky ReLU $\max(X, \alpha X)$ as if $X$ and $\alpha X$ were independent, beside its exact moments.

The paper says that ignoring their correlation gives "a similar plot, but with a slightly increased variance in the
transition part and with a slightly more smoothed mean".
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from momentprop.paper import leaky_relu_fitted, leaky_relu_normal, max_fitted, max_normal
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome, grid, numbers, rounded, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "max-correlation"
TITLE = "max(X, αX) with and without the correlation of its arguments (table, figure)"

SLOPES = (0.01, 0.1, 0.3, 0.5, 0.9)
DRAWN = 0.1
"""The slope of the paper's figure."""
RANGE, STEP = 6.0, 0.005


class Pair(NamedTuple):
    """Means and variances that follow the correlation, and that ignore it."""

    mean: Tensor
    variance: Tensor
    other_mean: Tensor
    other_variance: Tensor

    @classmethod
    def exact(cls, a: Tensor, slope: float) -> "Pair":
        """Return the moments of normal variables."""
        one = torch.ones_like(a)
        return cls(*leaky_relu_normal(a, one, slope), *max_normal(a, one, slope * a, slope**2 * one)[:2])

    @classmethod
    def fitted(cls, a: Tensor, slope: float) -> "Pair":
        """Return the moments by the formulas of the paper's implementation."""
        one = torch.ones_like(a)
        return cls(*leaky_relu_fitted(a, one, slope), *max_fitted(a, one, slope * a, slope**2 * one)[:2])

    @property
    def mean_off(self) -> Tensor:
        """By how much ignoring the correlation raises the mean, for inputs of deviation 1."""
        return self.other_mean - self.mean

    @property
    def stddev_off(self) -> Tensor:
        """By how much it raises the deviation, relative to it."""
        return (self.other_variance / self.variance).sqrt() - 1


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Compare for every slope; `quick` changes nothing."""
    a = grid(RANGE, STEP)
    found = {"exact moments": Pair.exact, "the paper's formulas": Pair.fitted}
    rows, data = [], []
    for slope in SLOPES:
        for name, of in found.items():
            pair = of(a, slope)
            mean, off = pair.mean_off, pair.stddev_off
            zero = len(a) // 2
            figures = {
                "mean_off": rounded(mean.max().item()),
                "stddev_off_at_zero": rounded(off[zero].item()),
                "stddev_off_least": rounded(off.min().item()),
                "stddev_off_least_at": rounded(a[off.argmin()].item()),
                "stddev_off_largest": rounded(off.max().item()),
                "stddev_off_largest_at": rounded(a[off.argmax()].item()),
            }
            data.append({"slope": slope, "by": name, **figures})
            low, high = (f"{off.min():+.1%} at {a[off.argmin()]:.1f}", f"{off.max():+.1%} at {a[off.argmax()]:.1f}")
            rows.append((f"{slope:g}", name, f"{mean.max():+.3f}", f"{off[zero]:+.1%}", low, high))
    markdown = "\n\n".join(
        [
            f"# {TITLE}",
            "A leaky ReLU is the maximum of X and αX, which are correlated. The table says by how much the mean and "
            "the deviation σ' of the output change if the correlation is ignored, for inputs of deviation 1 and mean "
            f"a from {-RANGE:g} to {RANGE:g}.",
            table(
                ("α", "moments by", "mean, at most", "σ' at a = 0", "lowest change of σ'", "highest change of σ'"), rows
            ),
        ]
    )
    shown = Pair.exact(a, DRAWN)
    curves = {name: numbers(part[::40]) for name, part in shown._asdict().items()}
    drawn = draw(out, NAME, (9.0, 3.4), lambda figure: _plot(figure, a))
    return Outcome({"rows": data, "a": numbers(a[::40]), "slope": DRAWN, "curves": curves}, markdown, drawn)


def _plot(figure: "Figure", a: Tensor) -> None:
    moments, deviations = figure.subplots(1, 2)
    pair = Pair.exact(a, DRAWN)
    for mean, variance, label, style in (
        (pair.mean, pair.variance, "followed", LINES["AP2 (default)"]),
        (pair.other_mean, pair.other_variance, "ignored", LINES["AP1"]),
    ):
        moments.plot(a, mean, label=f"mean, correlation {label}", **style)
        moments.plot(a, variance.sqrt(), label=f"σ', correlation {label}", **(style | {"linewidth": 1.0}))
    moments.set(title=f"max(X, {DRAWN:g} X)", xlabel="mean a of the input", xlim=(-3, 3), ylim=(-0.4, 3.05))
    moments.legend(loc="upper left")
    styles = (LINES["AP2 (default)"], LINES["AP2b"], LINES["AP1"])
    for slope, style in zip((0.1, 0.3, 0.5), styles, strict=True):
        off = 100 * Pair.exact(a, slope).stddev_off
        deviations.plot(a, off, label=f"α = {slope:g}", **(style | {"linewidth": 1.5}))
    deviations.axhline(0.0, color="0.6", linewidth=0.8)
    deviations.set(title="σ' without the correlation", xlabel="mean a of the input", ylabel="change in %", xlim=(-5, 5))
    deviations.legend(loc="lower left")
