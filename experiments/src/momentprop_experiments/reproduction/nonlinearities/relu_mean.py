r"""The mean of ReLU for normal and logistic inputs of variance 1, beside ELU.

ELU appears as $\mathrm{ELU}(\mu - 1) + 1$: the paper shifts its input by 1, and ignores vertical offsets.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch.nn.functional as F

import momentprop
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome, grid, numbers, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "relu-mean"
TITLE = "The mean of ReLU for normal and logistic inputs, compared with ELU (figure)"

RANGE, STEP = 4.0, 0.01


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Compute the curves; `quick` changes nothing."""
    x = grid(RANGE, STEP)
    relu = F.relu(x)
    normal = momentprop.propagate(F.relu, x, input_variance=1.0, covariance=False).loc
    logistic = momentprop.propagate(F.relu, x, input_variance=1.0, family="logistic", covariance=False).loc
    elu = F.elu(x - 1) + 1
    curves = {"relu": relu, "normal": normal, "logistic": logistic, "elu": elu}
    data = {
        "input_variance": 1.0,
        "at_zero": {"normal": 1 / math.sqrt(2 * math.pi), "logistic": math.log(2) * math.sqrt(3) / math.pi},
        "largest_difference": {
            "logistic": (logistic - normal).abs().max().item(),
            "elu": (elu - normal).abs().max().item(),
            "relu": (relu - normal).abs().max().item(),
        },
        "x": numbers(x[::20]),
        "curves": {name: numbers(curve[::20]) for name, curve in curves.items()},
    }
    rows = [
        (f"{x[i].item():g}", *(f"{curve[i].item():.4f}" for curve in curves.values())) for i in range(100, 701, 100)
    ]
    largest = data["largest_difference"]
    markdown = "\n\n".join(
        [
            f"# {TITLE}",
            "The table has the mean of ReLU(X) for normal and for logistic inputs of mean μ and variance 1. The mean "
            f"for logistic inputs differs from that for normal ones by at most {largest['logistic']:.4f}. "
            f"ELU(μ - 1) + 1 differs from it by at most {largest['elu']:.4f}, and ReLU(μ) by at most "
            f"{largest['relu']:.4f}.",
            table(("input mean μ", "ReLU(μ)", "normal", "logistic", "ELU(μ - 1) + 1"), rows),
        ]
    )

    def plot(figure: "Figure") -> None:
        axis = figure.subplots()
        axis.plot(x, relu, color="0.6", linewidth=1.2, label="ReLU(μ)")
        axis.plot(x, normal, label="E ReLU(X), X normal", **LINES["AP2 (default)"])
        axis.plot(x, logistic, label="E ReLU(X), X logistic", **LINES["AP1"])
        axis.plot(x, elu, label="ELU(μ − 1) + 1", **(LINES["AP2b"] | {"linestyle": ":"}))
        axis.set(xlabel="mean μ of the input", ylabel="mean of the output", xlim=(-RANGE, 3), ylim=(-0.1, 3.05))
        axis.legend(loc="upper left")

    return Outcome(data, markdown, draw(out, NAME, (5.2, 3.8), plot))
