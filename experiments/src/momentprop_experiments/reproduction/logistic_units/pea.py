r"""The piecewise exponential approximation of the logistic function, which is the Laplace cdf of scale $1/\ln 2$."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributions import Laplace

from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome, grid, numbers, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "pea"
TITLE = "The piecewise exponential function (PEA), compared with the logistic function (figure)"

RANGE, STEP = 8.0, 0.01


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Compare both functions on a grid; `quick` changes nothing."""
    x = grid(RANGE, STEP)
    logistic = torch.sigmoid(x)
    piecewise = Laplace(torch.zeros((), dtype=torch.float64), 1 / math.log(2)).cdf(x)
    gap = piecewise - logistic
    worst = int(gap.abs().argmax())
    data = {
        "largest_difference": gap.abs().max().item(),
        "at": x[worst].abs().item(),
        "slope_at_zero": {"logistic": 0.25, "piecewise_exponential": math.log(2) / 2},
        "x": numbers(x[::40]),
        "logistic": numbers(logistic[::40]),
        "piecewise_exponential": numbers(piecewise[::40]),
    }
    rows = [
        (f"{x[i].item():g}", f"{logistic[i].item():.4f}", f"{piecewise[i].item():.4f}", f"{gap[i].item():+.4f}")
        for i in range(300, 1301, 100)
    ]
    markdown = "\n\n".join(
        [
            f"# {TITLE}",
            "The piecewise exponential function L approximates the logistic function S. They differ by at most "
            f"{data['largest_difference']:.4f}, at x = ±{data['at']:.2f}. At zero L has the slope "
            f"{math.log(2) / 2:.4f}, and S 0.25.",
            table(("x", "logistic S(x)", "PEA L(x)", "L(x) - S(x)"), rows),
        ]
    )

    def plot(figure: "Figure") -> None:
        functions, difference = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
        functions.plot(x, logistic, label="logistic S", **LINES["exact"])
        functions.plot(x, piecewise, label="piecewise exponential L", **LINES["PEA"])
        functions.set(ylabel="cdf")
        functions.legend(loc="upper left")
        difference.plot(x, gap, color="black")
        difference.set(xlabel="x", ylabel="L − S", xlim=(-RANGE, RANGE), yticks=(-0.02, 0, 0.02))

    return Outcome(data, markdown, draw(out, NAME, (5.2, 4.2), plot))
