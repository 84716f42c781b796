r"""The constant of $R(a) \approx S(a/t)$: the result of a fit by the largest divergence, and of other fits.

The paper fits $t = 0.3729$ "to minimize the maximum KL divergence for LReLU(0.01)". With the variance of the leaky ReLU
approximated by $\alpha^2 + (1 - \alpha^2) S(a/t)$, the divergence of two normal distributions of the same mean and of
variances $v$ (exact) and $w$ (approximate) is $\tfrac12 (v/w - 1 - \ln v/w)$.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from momentprop.distributions import LOGISTIC_VARIANCE
from momentprop.paper import leaky_relu_normal, rectified_variance, rectified_variance_commented_out
from momentprop.paper.rectifier import FITTED_SCALE
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome, grid, numbers, rounded, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "fit-of-t"
TITLE = "The constant t = 0.3729 of the ReLU variance, fitted by several criteria (table, figure)"

SLOPE = 0.01
RANGE = 6.0
SLOPES = (0.001, 0.01, 0.1, 0.3)
OPTIMAL = "max KL"
"""The criterion that the paper names."""

_CRITERIA = {
    "printed": "(printed in the paper)",
    OPTIMAL: "largest KL",
    "max reversed KL": "largest reversed KL",
    "max KL, logistic mean": "largest KL, with the logistic mean",
    "mean KL": "mean KL",
    "max error of R": "largest error of R",
    "squared error of R": "mean squared error of R",
}
"""The words for the printed constant, and for each criterion."""

Criterion = Callable[[float], float]


class Fit:
    """The approximation of a leaky ReLU's variance on a grid of $a$, and criteria for its constant."""

    def __init__(self, slope: float, a: Tensor) -> None:
        self.slope, self.a = slope, a
        self.mean, self.exact = leaky_relu_normal(a, torch.ones_like(a), slope)

    def variance(self, t: float) -> Tensor:
        """Return the approximate variance."""
        return self.slope**2 + (1 - self.slope**2) * torch.sigmoid(self.a / t)

    def divergence(self, t: float) -> Tensor:
        """Return the divergence from the exact distribution to the approximate one with the same mean, in nats."""
        return normal_kl(self.exact, self.variance(t))

    def criteria(self) -> dict[str, Criterion]:
        """Return what a fit could minimize."""
        rectified = rectified_variance(self.a)
        logistic = torch.sigmoid(self.a * math.sqrt(LOGISTIC_VARIANCE))
        normal = torch.exp(-(self.a**2) / 2) / math.sqrt(2 * math.pi)
        beta = 1 - self.slope
        off = self.mean - (self.a * (self.slope + beta * logistic) + beta * normal)
        return {
            OPTIMAL: lambda t: self.divergence(t).max().item(),
            "max reversed KL": lambda t: normal_kl(self.variance(t), self.exact).max().item(),
            "max KL, logistic mean": lambda t: (self.divergence(t) + off**2 / self.variance(t) / 2).max().item(),
            "mean KL": lambda t: self.divergence(t).mean().item(),
            "max error of R": lambda t: (torch.sigmoid(self.a / t) - rectified).abs().max().item(),
            "squared error of R": lambda t: (torch.sigmoid(self.a / t) - rectified).square().mean().item(),
        }


def normal_kl(variance: Tensor, other: Tensor) -> Tensor:
    r"""Return $KL(p \| q)$ of normal distributions of one mean in nats.

    >>> normal_kl(torch.tensor(1.0), torch.tensor(2.0))
    tensor(0.0966)
    """
    ratio = variance / other
    return (ratio - 1 - ratio.log()) / 2


def least(criterion: Criterion, low: float = 0.05, high: float = 2.0) -> float:
    """Return where a function with one minimum is least, to six digits.

    >>> round(least(lambda t: (t - 0.3729) ** 2), 6)
    0.3729
    """
    while high - low > 1e-7:
        third = (high - low) / 3
        if criterion(low + third) < criterion(high - third):
            high -= third
        else:
            low += third
    return (low + high) / 2


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Fit the constant by every criterion; `quick` takes a coarser grid."""
    a = grid(RANGE, 0.05 if options.quick else 0.002)
    fit = Fit(SLOPE, a)
    found = {name: least(criterion) for name, criterion in fit.criteria().items()}
    by_slope = {slope: least(Fit(slope, a).criteria()[OPTIMAL]) for slope in SLOPES}
    told = {"printed": FITTED_SCALE, **found}
    data = {
        "slope": SLOPE,
        "range": RANGE,
        "printed": FITTED_SCALE,
        "fits": {
            name: {
                "t": rounded(t),
                "largest_kl": rounded(fit.divergence(t).max().item()),
                "stddev_off": [rounded(x) for x in _off(fit, t)],
                "R_off": rounded((torch.sigmoid(a / t) - rectified_variance(a)).abs().max().item()),
            }
            for name, t in told.items()
        },
        "by_slope": {f"{slope:g}": rounded(t) for slope, t in by_slope.items()},
        "curves": {"a": numbers(a[:: max(1, len(a) // 60)])},
    }
    return Outcome(data, _report(data), draw(out, NAME, (9.0, 3.4), lambda figure: _plot(figure, fit, found)))


def _off(fit: Fit, t: float) -> tuple[float, float]:
    """Return the least and the largest relative error of the deviation."""
    ratio = (fit.variance(t) / fit.exact).sqrt() - 1
    return ratio.min().item(), ratio.max().item()


def _report(data: dict[str, Any]) -> str:
    rows, by_slope = [], data["by_slope"]
    for name, found in data["fits"].items():
        low, high = found["stddev_off"]
        rows.append(
            (
                _CRITERIA[name],
                f"{found['t']:.4f}",
                f"{found['largest_kl']:.4f}",
                f"{low:+.1%} to {high:+.1%}",
                f"{found['R_off']:.3f}",
            )
        )
    return "\n\n".join(
        [
            f"# {TITLE}",
            "The paper approximates the variance R(a) of a rectified unit by S(a / t). The table has the t that is "
            "best by each criterion, and the errors with it, for the leaky ReLU of "
            f"slope {SLOPE:g} and |a| up to {RANGE:g}. KL(exact || approximate) is in nats, between normal "
            "distributions of the same mean. R itself goes from 0 to 1.",
            table(("t is best by", "t", "largest KL", "σ' off by", "R off by up to"), rows),
            "**The t that is best by the largest KL, for several slopes**",
            table(("slope", *by_slope), [("t", *(f"{t:.4f}" for t in by_slope.values()))]),
        ]
    )


def _plot(figure: "Figure", fit: Fit, found: dict[str, float]) -> None:
    functions, divergences = figure.subplots(1, 2)
    shown = fit.a.abs() <= 4
    a = fit.a[shown]
    printed, ours = f"S(a / {FITTED_SCALE})", f"S(a / {found[OPTIMAL]:.4f}), max KL"
    squares = found["squared error of R"]
    lines = {
        "R(a)": (rectified_variance(a), LINES["exact"]),
        printed: (torch.sigmoid(a / FITTED_SCALE), LINES["AP1"]),
        f"S(a / {squares:.3f}), squared error": (torch.sigmoid(a / squares), LINES["AP2b"]),
        "S(1.8482 (a − 0.3766)), commented out": (rectified_variance_commented_out(a), LINES["AP2 (default)"]),
    }
    for label, (curve, style) in lines.items():
        functions.plot(a, curve, label=label, **(style | {"linewidth": 1.5}))
    functions.set(xlabel="a = μ / σ", title="R and its approximations", xlim=(-4, 4), ylim=(-0.02, 1.45))
    functions.legend(loc="upper left")
    for t, label, style in ((FITTED_SCALE, printed, LINES["AP1"]), (found[OPTIMAL], ours, LINES["AP2a"])):
        divergences.plot(fit.a, 1000 * fit.divergence(t), label=label, **style)
    divergences.set(
        xlabel="a = μ / σ",
        ylabel="KL in millinats",
        title=f"leaky ReLU of slope {SLOPE:g}",
        xlim=(-RANGE, RANGE),
        ylim=(0, 48),
    )
    divergences.legend(loc="upper left")
