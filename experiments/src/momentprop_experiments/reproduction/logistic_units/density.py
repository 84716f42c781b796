r"""Why a normal activation is a fair assumption: the sum of 1 to 10 binary inputs and logistic noise.

$V = U + Z$ with $U = \sum_{i \le n} w_i X_i$, $p(X_i{=}1) = 1/2$ and the weights printed in the paper. Its density is
a mixture of $2^n$ logistic densities; the normal density has the same mean and variance.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from momentprop.distributions import LOGISTIC_VARIANCE, LogisticDistribution
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "density"
TITLE = "The sum of 1 to 10 binary inputs and logistic noise, compared with a normal distribution (figure)"

WEIGHTS = (5.1, 4.6, 3.5, 0.9, 4.3, 7.0, 1.1, 0.7, 3.6, 0.3)
STEP = 0.05


class Sum(NamedTuple):
    """The densities and distribution functions of $V$ and of the normal distribution on a grid."""

    mean: float
    variance: float
    density: Tensor
    cdf: Tensor
    normal_density: Tensor
    normal_cdf: Tensor

    @classmethod
    def of(cls, weights: Tensor, x: Tensor) -> "Sum":
        """Sum over all states of the inputs."""
        sums = torch.zeros(1, dtype=x.dtype)
        for weight in weights:
            sums = torch.cat([sums, sums + weight])
        logistic = LogisticDistribution(sums.unsqueeze(-1), torch.ones((), dtype=x.dtype))
        mean, variance = weights.sum() / 2, (weights**2).sum() / 4 + LOGISTIC_VARIANCE
        normal = Normal(mean, variance.sqrt())
        parts = logistic.log_prob(x).exp().mean(0), logistic.cdf(x).mean(0), normal.log_prob(x).exp(), normal.cdf(x)
        return cls(mean.item(), variance.item(), *parts)

    def cdf_gap(self) -> float:
        """Return the largest difference of the distribution functions, which bounds the error of AP2a at any bias."""
        return (self.cdf - self.normal_cdf).abs().max().item()

    def total_variation(self) -> float:
        """Return half of the area between the densities."""
        return 0.5 * STEP * (self.density - self.normal_density).abs().sum().item()


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Compute and draw all sums; `quick` changes nothing."""
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    x = torch.arange(-20.0, 52.0, STEP, dtype=torch.float64)
    sums = {n: Sum.of(weights[:n], x) for n in range(len(WEIGHTS) + 1)}
    rows = [
        {
            "inputs": n,
            "mean": v.mean,
            "variance": v.variance,
            "largest_cdf_difference": v.cdf_gap(),
            "total_variation": v.total_variation(),
        }
        for n, v in sums.items()
    ]
    cells = [
        (str(n), f"{v.mean:.2f}", f"{v.variance:.2f}", f"{v.cdf_gap():.4f}", f"{v.total_variation():.4f}")
        for n, v in sums.items()
    ]
    markdown = "\n\n".join(
        [
            f"# {TITLE}",
            "A unit sums binary inputs, which are 1 with probability 1/2, with weights, and adds logistic noise. The "
            "table says how far this sum is from a normal distribution of the same mean and variance. The largest "
            "difference of the distribution functions is also the largest error of AP2a over all biases. The row of 0 "
            f"inputs is the logistic noise alone. The weights are w = {WEIGHTS}.",
            table(
                ("inputs", "mean", "variance", "largest difference of distribution functions", "total variation"), cells
            ),
        ]
    )
    figures = draw(out, NAME, (8.6, 6.4), lambda figure: _plot(figure, x, sums))
    return Outcome({"weights": list(WEIGHTS), "probability": 0.5, "rows": rows}, markdown, figures)


def _plot(figure: "Figure", x: Tensor, sums: dict[int, Sum]) -> None:
    """Draw the curves one above the other, with a baseline for each number of inputs."""
    densities, cdfs = figure.subplots(1, 2, sharey=True)
    shown = ((x >= -8) & (x <= 40)).nonzero().squeeze(-1)[::4]
    tallest = max(v.density.max().item() for n, v in sums.items() if n)
    for n, v in sums.items():
        if n == 0:
            continue
        for axis, exact, normal, scale in (
            (densities, v.density, v.normal_density, 0.92 / tallest),
            (cdfs, v.cdf, v.normal_cdf, 0.8),
        ):
            first, at = n == 1, x[shown]
            curve, fit = n + scale * exact[shown], n + scale * normal[shown]
            axis.fill_between(at, n, curve, color="0.9", linewidth=0)
            axis.plot(at, curve, label="inputs and noise" if first else None, **(LINES["exact"] | {"linewidth": 1.3}))
            axis.plot(at, fit, label="normal" if first else None, **(LINES["AP1"] | {"linewidth": 1.2}))
    for axis, title in ((densities, "densities"), (cdfs, "cdfs")):
        axis.set(title=title, xlabel="activation", xlim=(-8, 40), ylim=(0.8, 11.4), yticks=range(1, len(sums)))
        axis.grid(visible=False, axis="y")
    densities.set_ylabel("number of inputs")
    densities.legend(loc="upper left", ncols=2)
