r"""Divergence of each approximation of a logistic unit from the truth, against the unit's bias.

The unit has $p(Y{=}1 \mid X) = S(b + \sum_{i \le n} w_i X_i)$ with $n$ = 1 to 5 inputs of probability 1/2 and the
weights of the density figure. The truth is the sum over all states. Sampling draws the inputs 50 times and averages
$p(Y{=}1 \mid x)$, which keeps its divergence finite; 1,000 trials repeat this.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Bernoulli

from momentprop.sampling import progress
from momentprop_experiments.drawing import DASHES, SHADES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.logistic_units.density import WEIGHTS
from momentprop_experiments.reproduction.logistic_units.feed_forward import METHODS, affine, feed_forward, seeded
from momentprop_experiments.reproduction.outcome import Outcome, grid, numbers, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "kl-bias"
TITLE = "How far AP1, every AP2, MacKay, PEA and 50 draws are from the truth, by the bias of a unit (figure)"

INPUTS = (1, 2, 3, 4, 5)
DRAWS = 50
LOWEST, HIGHEST = -25.0, 7.0
"""The range of biases; beyond it the unit is nearly always 0, or 1, for any number of inputs."""


class Curves(NamedTuple):
    """The divergences in bits at each bias for one number of inputs."""

    truth: Tensor  # shape: (biases,), the exact probability
    methods: dict[str, Tensor]
    sampling: Tensor  # shape: (biases,), the mean over trials
    interval: Tensor  # shape: (2, biases), the 5 % and 95 % quantiles


@torch.no_grad()
def measure(inputs: int, biases: Tensor, trials: int) -> Curves:
    """Measure the divergence of each method, and of draws, from the exact sum."""
    weights = torch.tensor(WEIGHTS[:inputs], dtype=biases.dtype)
    sums = torch.zeros(1, dtype=biases.dtype)
    for weight in weights:
        sums = torch.cat([sums, sums + weight])
    each = torch.sigmoid(sums.unsqueeze(-1) + biases)  # shape: (states, biases)
    truth = each.mean(0)
    map = affine(weights.expand(len(biases), -1), biases)  # a unit for every bias
    given = feed_forward([map], Bernoulli(torch.full((inputs,), 0.5, dtype=biases.dtype)))
    drawn = torch.randint(len(sums), (trials, DRAWS), generator=seeded(inputs))
    counts = torch.zeros(trials, len(sums), dtype=biases.dtype).scatter_add_(1, drawn, torch.ones_like(drawn).double())
    sampled = bits(truth, counts / DRAWS @ each)  # shape: (trials, biases)
    return Curves(
        truth,
        {name: bits(truth, q) for name, q in given.items()},
        sampled.mean(0),
        torch.quantile(sampled, torch.tensor([0.05, 0.95], dtype=biases.dtype), dim=0),
    )


def bits(p: Tensor, q: Tensor) -> Tensor:
    r"""Return $KL(p \| q)$ of two Bernoulli variables in bits."""
    nats = torch.xlogy(p, p / q) + torch.xlogy(1 - p, (1 - p) / (1 - q))
    return nats.clamp(min=0.0) / math.log(2)  # rounding leaves up to 1e-17 below zero where both agree


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Compute all curves; `quick` takes fewer biases and trials."""
    trials, step = (50, 1.0) if options.quick else (1000, 0.2)
    biases = grid(-LOWEST, step)
    biases = biases[biases <= HIGHEST + step / 2]
    curves = {}
    with progress(len(INPUTS), NAME) as bar:
        for inputs in INPUTS:
            curves[inputs] = measure(inputs, biases, trials)
            bar.update(1)
    figures = draw(out, NAME, (9.6, 4.8), lambda figure: _plot(figure, biases, curves))
    return Outcome(_data(biases, curves, trials), _report(biases, curves, trials), figures)


def _rows(curves: Curves) -> dict[str, Tensor]:
    return {
        **curves.methods,
        f"{DRAWS} draws": curves.sampling,
        f"{DRAWS} draws, 5 %": curves.interval[0],
        f"{DRAWS} draws, 95 %": curves.interval[1],
    }


def _data(biases: Tensor, curves: dict[int, Curves], trials: int) -> dict[str, Any]:
    return {
        "weights": list(WEIGHTS[: max(INPUTS)]),
        "probability": 0.5,
        "draws": DRAWS,
        "trials": trials,
        "unit": "bits",
        "largest": {str(n): {k: v.max().item() for k, v in _rows(c).items()} for n, c in curves.items()},
        "mean": {str(n): {k: v.mean().item() for k, v in _rows(c).items()} for n, c in curves.items()},
        "biases": numbers(biases),
        "truth": {str(n): numbers(c.truth, 5) for n, c in curves.items()},
        "curves": {str(n): {k: numbers(v, 4) for k, v in _rows(c).items()} for n, c in curves.items()},
    }


def _report(biases: Tensor, curves: dict[int, Curves], trials: int) -> str:
    names = list(_rows(curves[1]))
    head = ("method", *(f"{n} input{'s' * (n > 1)}" for n in curves))
    largest = [(k, *(f"{1000 * _rows(c)[k].max().item():.3g}" for c in curves.values())) for k in names]
    mean = [(k, *(f"{1000 * _rows(c)[k].mean().item():.3g}" for c in curves.values())) for k in names]
    few = [int((biases - b).abs().argmin()) for b in (-20, -15, -10, -5, 0)]
    last = _rows(curves[max(INPUTS)])
    some = [(k, *(f"{1000 * last[k][i].item():.3g}" for i in few)) for k in names]
    return "\n\n".join(
        [
            f"# {TITLE}",
            "The tables have the divergence of a logistic unit's output by each method from the exact one, "
            f"KL(exact || method), in thousandths of a bit. Less is better. The bias goes from {LOWEST:g} to "
            f"{HIGHEST:g}. The rows of draws have the mean and two quantiles over {trials} trials of {DRAWS} draws "
            "each.",
            "**The largest divergence over the biases**",
            table(head, largest),
            "**The mean divergence over the biases**",
            table(head, mean),
            f"**The divergence at some biases, with {max(INPUTS)} inputs**",
            table(("method", *(f"b = {biases[i].item():g}" for i in few)), some),
        ]
    )


def _plot(figure: "Figure", biases: Tensor, curves: dict[int, Curves]) -> None:
    """Draw a panel for each method, with a line for each number of inputs."""
    grid = figure.subplots(2, 4, sharex=True)
    panels = list(grid.flat)
    names = (*METHODS, f"{DRAWS} draws")
    shown = [_rows(c) for c in curves.values()]
    top = 1050 * max(row["AP1"].max().item() for row in shown)
    for axis, name in zip(panels, names, strict=False):
        for row, color, dashes in zip(shown, SHADES, DASHES, strict=True):
            axis.plot(biases, 1000 * row[name], color=color, linestyle=dashes, linewidth=1.3)
        axis.set(title=name, xlim=(LOWEST, HIGHEST), ylim=(0, top / 10), xticks=(-20, -10, 0))
    panels[0].set(title="AP1 (axis × 10)", ylim=(0, top))
    draws = panels[len(names) - 1]
    for row, color in zip(shown, SHADES, strict=True):
        for end in ("5 %", "95 %"):
            draws.plot(biases, 1000 * row[f"{DRAWS} draws, {end}"], color=color, linestyle=":", linewidth=0.9)
    draws.set_title(f"{DRAWS} draws: mean, 5 %, 95 %")
    for axis in grid[-1]:
        axis.set_xlabel("bias")
    for axis in grid[:, 0]:
        axis.set_ylabel("KL in millibits")
    key = panels[len(names)]
    key.axis("off")
    for n, color, dashes in zip(curves, SHADES, DASHES, strict=True):
        key.plot([], [], color=color, linestyle=dashes, label=f"{n} input{'s' * (n > 1)}")
    key.plot([], [], color=SHADES[-1], linestyle=":", linewidth=0.9, label="90 % interval of trials")
    key.legend(loc="center", fontsize=9)
