r"""A logistic unit $p(Y{=}1 \mid X) = S(a(X_1 + X_2) + b)$ as a logic gate with uncertain inputs.

With these constants the unit errs with probability $\varepsilon$ on the inputs next to its threshold: with
$\ell = \log((1-\varepsilon)/\varepsilon)$ the slope is $a = 2\ell$, and $b = -3\ell$ for AND, $b = -\ell$ for OR.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli

from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.reproduction.logistic_units.feed_forward import (
    DEFAULT,
    METHODS,
    affine,
    feed_forward,
    network,
)
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERROR = 0.05
LOGIT = math.log((1 - ERROR) / ERROR)
INPUTS = ((0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.25, 0.25), (0.5, 0.5), (0.75, 0.75))
"""The probabilities of the two inputs in the paper's table."""


@dataclass(frozen=True)
class Gate:
    """A logic gate, and the constants of its unit."""

    name: str
    slope: float
    bias: float

    def truth(self, p: Tensor) -> Tensor:
        """Return the probability that the logic gate is 1 for independent inputs."""
        return p.prod(-1) if self.name == "AND" else 1 - (1 - p).prod(-1)

    def unit(self, p: Tensor) -> dict[str, Tensor]:
        """Return the unit's probability, exact and by each method, for input probabilities of shape (inputs, 2)."""
        map = affine(torch.full((1, 2), self.slope, dtype=p.dtype), torch.full((1,), self.bias, dtype=p.dtype))
        x = Bernoulli(p)
        exact = network([map]).exact(x)[-1].marginals
        return {name: value.squeeze(-1) for name, value in {"exact": exact, **feed_forward([map], x)}.items()}

    def draws(self, p: Tensor, count: int) -> Tensor:
        """Return the fraction of draws in which the unit is 1."""
        map = affine(torch.full((1, 2), self.slope, dtype=p.dtype), torch.full((1,), self.bias, dtype=p.dtype))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return network([map]).sample(Bernoulli(p), count)[-1].mean(0).squeeze(-1)


@torch.no_grad()
def measure(gate: Gate, draws: int) -> dict[str, Any]:
    """Measure all numbers of the table, with one row for each pair of inputs."""
    p = torch.tensor(INPUTS, dtype=torch.float64)
    truth, unit, sampled = gate.truth(p), gate.unit(p), gate.draws(p, draws)
    errors = (unit["exact"] * (1 - unit["exact"]) / draws).sqrt()
    rows = [
        {
            "inputs": list(inputs),
            "gate": truth[i].item(),
            **{name: value[i].item() for name, value in unit.items()},
            "sampling": sampled[i].item(),
            "sampling_standard_error": errors[i].item(),
        }
        for i, inputs in enumerate(INPUTS)
    ]
    return {"error": ERROR, "slope": gate.slope, "bias": gate.bias, "draws": draws, "rows": rows}


def methods_table(gate: Gate, data: dict[str, Any]) -> str:
    """Return the table of the unit by each method, beside the exact sum and the draws."""
    columns = ("exact", *METHODS)
    head = ("p(X1=1)", "p(X2=1)", f"{gate.name} gate", "E[Y]", *METHODS, f"{data['draws']} draws")
    rows = [
        (
            *(f"{p:g}" for p in row["inputs"]),
            shown(row["gate"]),
            *(shown(row[name]) for name in columns),
            f"{shown(row['sampling'])} ± {row['sampling_standard_error']:.1g}",
        )
        for row in data["rows"]
    ]
    return table(head, rows)


def shown(probability: float) -> str:
    """Format a probability with three significant digits."""
    return "0" if probability == 0 else f"{probability:.3g}"


@torch.no_grad()
def plot(gate: Gate, out: Path, name: str) -> list[Path]:
    """Draw the unit's probability against that of both inputs."""
    p = torch.linspace(0, 1, 101, dtype=torch.float64)
    both = torch.stack([p, p], -1)
    truth, unit = gate.truth(both), gate.unit(both)

    def on(figure: "Figure") -> None:
        axis, difference = figure.subplots(1, 2)
        axis.plot(p, truth, color="0.8", linewidth=5, label=f"{gate.name} gate")
        axis.plot(p, unit["exact"], label="unit, exact E[Y]", **LINES["exact"])
        for method in METHODS:
            if method in ("AP1", DEFAULT):
                axis.plot(p, unit[method], label=method, **LINES[method])
            difference.plot(p, unit[method] - unit["exact"], label=method, **LINES[method])
        for panel in (axis, difference):
            panel.set(xlabel="probability of each input", xlim=(0, 1))
        axis.set(ylabel="probability of the output", ylim=(-0.02, 1.02))
        axis.legend(loc="upper left" if gate.name == "AND" else "lower right")
        difference.set(ylabel="method − E[Y] (AP1 leaves the frame)", ylim=(-0.12, 0.12))
        difference.legend(loc="lower right" if gate.name == "OR" else "upper left", ncols=2)

    return draw(out, name, (8.6, 3.6), on)
