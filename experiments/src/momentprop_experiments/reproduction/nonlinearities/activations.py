r"""Moments of five units for inputs of variance 1 against the input mean, compared with many draws.

The means and deviations are those of the `Normal` rules. The draws check them to within their standard errors. The
`Fitted` rules come from the paper's implementation.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

import momentprop
from momentprop_experiments.drawing import draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome, grid, numbers, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "activations"
TITLE = "Mean and deviation after Heaviside, logistic and rectified units, compared with draws (figure)"

UNITS: dict[str, nn.Module] = {
    "Heaviside": momentprop.nn.Heaviside(),
    "Bernoulli-logistic": momentprop.nn.LogisticBernoulli(method=None),  # exact for `Normal`, AP2b for `Fitted`
    "logistic transform": nn.Sigmoid(),
    "ReLU": nn.ReLU(),
    "leaky ReLU, slope 0.1": nn.LeakyReLU(0.1),
}
RANGE = 6.0
EXAMPLE = 3.0
"""The input mean that the paper's figure shows as an example."""


class Propagated(NamedTuple):
    """The moments of a unit on a fine grid of input means, and on a coarse one beside draws."""

    fine: Any
    paper: Any
    coarse: Any
    drawn: Any
    draws: int

    def z_scores(self) -> tuple[float, float]:
        """Return the largest distances from the means and variances of the draws, in standard errors."""
        mean = (self.coarse.loc - self.drawn.loc) / self.drawn.loc_error
        # the second-order error, the only one for a fair coin, whose fourth moment is its squared variance
        least = math.sqrt(2) * self.coarse.variance / self.draws
        variance = (self.coarse.variance - self.drawn.variance) / torch.hypot(self.drawn.variance_error, least)
        return mean.abs().max().item(), variance.abs().max().item()

    def off(self) -> tuple[float, float]:
        """Return the paper's largest errors for means up to 3: of the mean in deviations, and of the deviation."""
        near = slice(len(self.fine.loc) // 4, 1 - len(self.fine.loc) // 4)
        mean = (self.paper.loc - self.fine.loc) / self.fine.stddev
        stddev = self.paper.stddev / self.fine.stddev - 1
        return mean[near].abs().max().item(), stddev[near].abs().max().item()


@torch.no_grad()
def measure(unit: nn.Module, fine: Tensor, coarse: Tensor, draws: int) -> Propagated:
    """Propagate inputs of variance 1 through a unit."""

    def moments(mean: Tensor, **options: Any) -> Any:
        return momentprop.propagate(unit, mean, input_variance=1.0, **options, covariance=False)

    drawn = moments(coarse, method="sample", samples=draws, seed=0)
    return Propagated(moments(fine), moments(fine, family="fitted"), moments(coarse), drawn, draws)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Propagate through all units; `quick` takes fewer draws."""
    draws = 20_000 if options.quick else 400_000
    fine = grid(RANGE, 0.05)
    coarse = grid(3.0, 0.75)
    results = {name: measure(unit, fine, coarse, draws) for name, unit in UNITS.items()}
    data = {
        "input_variance": 1.0,
        "draws": draws,
        "input_means": numbers(coarse),
        "units": {
            name: {
                "mean": numbers(r.coarse.loc),
                "stddev": numbers(r.coarse.stddev),
                "drawn_mean": numbers(r.drawn.loc),
                "drawn_mean_error": numbers(r.drawn.loc_error, 3),
                "drawn_stddev": numbers(r.drawn.variance.sqrt()),
                "largest_z_of_mean": r.z_scores()[0],
                "largest_z_of_variance": r.z_scores()[1],
                "paper_mean_off": r.off()[0],
                "paper_stddev_off": r.off()[1],
            }
            for name, r in results.items()
        },
    }
    figures = draw(out, NAME, (9.6, 5.6), lambda figure: _plot(figure, fine, coarse, results))
    return Outcome(data, _report(data), figures)


def _report(data: dict[str, Any]) -> str:
    means = len(data["input_means"])
    rows = [
        (
            name,
            *(f"{found[f'largest_z_of_{moment}']:.1f}" for moment in ("mean", "variance")),
            f"{found['paper_mean_off']:.3f}",
            f"{found['paper_stddev_off']:.1%}",
        )
        for name, found in data["units"].items()
    ]
    head = (
        "unit",
        "mean: farthest from draws",
        "variance: farthest from draws",
        "paper: mean off by (in σ')",
        "paper: σ' off by",
    )
    return "\n\n".join(
        [
            f"# {TITLE}",
            "Inputs have variance 1 and means from -3 to 3. The first two columns have AP2's largest distance from "
            f"{data['draws']:,} draws over {means} means, in standard errors of the draws. Chance alone makes the "
            f"largest of {means} distances about 2. The last two columns say how far the formulas of the paper's "
            "implementation are off.",
            table(head, rows),
        ]
    )


def _plot(figure: "Figure", fine: Tensor, coarse: Tensor, results: dict[str, Propagated]) -> None:
    panels = list(figure.subplots(2, 3).flat)
    for axis, (name, r) in zip(panels, results.items(), strict=False):
        _panel(axis, fine, coarse, UNITS[name], r)
        axis.set(title=name, xlim=(-RANGE, RANGE), xlabel="input, or its mean")
    panels[-1].axis("off")
    handles, labels = panels[0].get_legend_handles_labels()
    panels[-1].legend(handles, labels, loc="center", fontsize=9)


def _panel(axis: "Axes", fine: Tensor, coarse: Tensor, unit: nn.Module, r: Propagated) -> None:
    function = unit(momentprop.Mean(fine)).loc
    low, high = r.fine.loc - 3 * r.fine.stddev, r.fine.loc + 3 * r.fine.stddev
    axis.fill_between(fine, low, high, color="#c9d8ee", linewidth=0, label="AP2: mean ± 3σ'")
    for sign, label in ((-1, "the paper's formulas: ± 3σ'"), (1, None)):
        edge = r.paper.loc + 3 * sign * r.paper.stddev
        axis.plot(fine, edge, color="0.35", linestyle=":", linewidth=1.1, label=label)
    axis.plot(fine, function, color="#c1272d", label="activation function", linewidth=1.3)
    axis.plot(fine, r.fine.loc, color="#1f4e9c", linestyle="--", label="AP2: mean")
    axis.errorbar(
        coarse, r.drawn.loc, 3 * r.drawn.variance.sqrt(),
        fmt="o", color="black", markersize=3, linewidth=0.8, capsize=2, label="draws: mean ± 3σ'",
    )  # fmt: skip
    base = axis.get_ylim()[0]
    axis.errorbar(
        [EXAMPLE], [base], xerr=3, fmt="s", color="black", markersize=4, linewidth=2, capsize=0, clip_on=False,
        label="an input: mean 3 ± 3σ",
    )  # fmt: skip
    axis.set_ylim(base)
