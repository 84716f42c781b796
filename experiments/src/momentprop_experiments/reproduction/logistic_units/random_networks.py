r"""Feed-forward inference against the truth, in random sigmoid belief networks that are small enough for exact sums.

A network has 1 to 4 layers of 3 to 12 units, with weights and biases drawn from $N(0, s^2)$, and a random input of 3 to
12 independent Bernoulli units. Each method computes the marginals of the last layer, to compare with an exact sum over
all states. One method also sums exactly, but treats the units of a layer as independent: its error is the price of
going forward layer by layer, and any further error of another method is that method's own.
"""

import contextlib
import math
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli

from momentprop.belief.divergence import forward_kl
from momentprop.sampling import progress
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.logistic_units.feed_forward import DEFAULT, feed_forward, network
from momentprop_experiments.reproduction.logistic_units.feed_forward import METHODS as FEED_FORWARD
from momentprop_experiments.reproduction.outcome import Outcome, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "truth"
TITLE = "AP1 and every AP2 against exact sums in random sigmoid belief networks (table, figure)"

LAYERS = (1, 2, 3, 4)
SCALES = (0.5, 1.0, 2.0, 4.0)
FEWEST, MOST = 3, 12
"""The range of the number of units in a layer."""

INDEPENDENT = "exact sums, independent units"
METHODS = (*FEED_FORWARD, INDEPENDENT)
MEASURES = {
    "kl": "KL(exact || method) of a marginal of the last layer in nats, averaged over its units",
    "absolute_error": "absolute error of that marginal, averaged over the units",
}


class RandomNetwork(NamedTuple):
    """A random network: its affine maps, and its input."""

    maps: list[nn.Linear]
    input: Bernoulli

    @classmethod
    def draw(cls, layers: int, scale: float, most: int = MOST, *, fewest: int = FEWEST) -> "RandomNetwork":
        """Draw the widths, the weights and the probabilities of the input."""
        widths: list[int] = torch.randint(fewest, most + 1, (layers + 1,)).tolist()
        maps = [nn.Linear(*pair, dtype=torch.float64) for pair in pairwise(widths)]
        for parameter in (parameter for map in maps for parameter in map.parameters()):
            nn.init.normal_(parameter, std=scale)
        return cls(maps, Bernoulli(torch.rand(widths[0], dtype=torch.float64)))

    def marginals(self) -> dict[str, Tensor]:
        """Return the marginals of the last layer by each method."""
        independent = network(self.maps).exact(self.input, factorized=True)[-1].marginals
        return {**feed_forward(self.maps, self.input), INDEPENDENT: independent}

    def errors(self) -> Tensor:
        """Return the errors of each method, averaged over the units of the last layer, of shape (measures, methods)."""
        exact = network(self.maps).exact(self.input)[-1]
        given = self.marginals()
        # a probability that rounds to 1 (AP2a has thin tails) counts as the largest number below 1
        marginals = torch.stack([given[name] for name in METHODS]).clamp(max=1 - 2**-53)
        divergences = torch.stack([forward_kl(exact, q).units.mean() for q in marginals])
        return torch.stack([divergences, (marginals - exact.marginals).abs().mean(-1)])


Cells = dict[tuple[int, float], Tensor]
"""The errors of networks by their number of layers and the scale of their weights: (networks, measures, methods)."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: with tensors this small, several threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def measure(networks: int, seed: int = 0) -> Cells:
    """Measure all methods on random networks, `networks` for each number of layers and scale of the weights."""
    cells = {}
    total = networks * len(LAYERS) * len(SCALES)
    with torch.random.fork_rng(devices=[]), one_thread(), progress(total, NAME) as bar:
        torch.manual_seed(seed)
        for layers, scale in product(LAYERS, SCALES):
            errors = []
            for _ in range(networks):
                errors.append(RandomNetwork.draw(layers, scale).errors())
                bar.update(1)
            cells[layers, scale] = torch.stack(errors)
    return cells


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Compare all methods on all kinds of networks; `quick` draws fewer networks."""
    networks = 3 if options.quick else 50
    cells = measure(networks)
    everything = torch.cat(list(cells.values()))
    data = {
        "networks_per_cell": networks,
        "units_per_layer": [FEWEST, MOST],
        "measures": MEASURES,
        "overall": summary(everything),
        "better_than_default_overall": better_than_default(everything),
        "cells": [
            {
                "layers": layers,
                "scale": scale,
                "methods": summary(errors),
                "better_than_default": better_than_default(errors),
            }
            for (layers, scale), errors in cells.items()
        ],
    }
    figures = draw(out, NAME, (9.6, 3.4), lambda figure: _plot(figure, cells))
    return Outcome(data, _report(cells, everything), figures)


def summary(errors: Tensor) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each method and measure, the mean over networks and the mean excess over the default method."""
    default = errors[..., METHODS.index(DEFAULT)].unsqueeze(-1)
    parts = {"mean": errors, "over_default": errors - default}
    moments = {part: (x.mean(0), x.std(0) / math.sqrt(len(x))) for part, x in parts.items()}
    return {
        method: {
            name: {
                key: figures[place, number].item()
                for part, both in moments.items()
                for key, figures in zip((part, f"{part}_standard_error"), both, strict=True)
            }
            for place, name in enumerate(MEASURES)
        }
        for number, method in enumerate(METHODS)
    }


def better_than_default(errors: Tensor) -> list[dict[str, Any]]:
    """Return the paper's methods with a smaller mean error than the default."""
    return [
        {"method": method, "measure": name, **figures}
        for method, row in summary(errors).items()
        for name, figures in row.items()
        if method not in (DEFAULT, INDEPENDENT) and figures["over_default"] < 0
    ]


def _report(cells: Cells, everything: Tensor) -> str:
    by_layers = {f"{n} layer{'s' * (n > 1)}": torch.cat([cells[n, s] for s in SCALES]) for n in LAYERS}
    by_scale = {f"weights {s:g}": torch.cat([cells[n, s] for n in LAYERS]) for s in SCALES}
    groups = {"all": everything, **by_layers, **by_scale}
    return "\n\n".join(
        [
            f"# {TITLE}",
            "The tables compare every method with exact sums: they have the error in the probability that a unit is 1, "
            f"as a mean ± its standard error over {len(everything)} networks with {FEWEST} to {MOST} units per layer. "
            "The first column has all networks; the others have those with the number of layers, or the standard "
            "deviation of the weights, in the head.",
            "**Divergence (KL) of a marginal, in thousandths of a nat**",
            _table(groups, "kl"),
            "**Absolute error of a marginal, in thousandths**",
            _table(groups, "absolute_error"),
            "**Where another method of the paper has a smaller mean error than the default**",
            _exceptions(cells, groups),
        ]
    )


def _table(groups: dict[str, Tensor], name: str) -> str:
    place = list(MEASURES).index(name)
    rows = []
    for number, method in enumerate(METHODS):
        samples = [1000 * errors[:, place, number] for errors in groups.values()]
        figures = [f"{x.mean().item():.3g} ± {x.std().item() / math.sqrt(len(x)):.1g}" for x in samples]
        rows.append((method, *figures))
    return table(("method", *groups), rows)


def _exceptions(cells: Cells, groups: dict[str, Tensor]) -> str:
    one_by_one = {f"{n} layer{'s' * (n > 1)}, weights {s:g}": errors for (n, s), errors in cells.items()}
    rows = [
        (
            where,
            worse["method"],
            {"kl": "KL"}.get(worse["measure"], worse["measure"].replace("_", " ")),
            f"{-1000 * worse['over_default']:.2g} ± {1000 * worse['over_default_standard_error']:.1g}",
        )
        for where, errors in (groups | one_by_one).items()
        for worse in better_than_default(errors)
    ]
    head = ("networks", "method", "measure", "smaller by, in thousandths, on the same networks")
    return table(head, rows) if rows else "Nowhere."


def _plot(figure: "Figure", cells: Cells) -> None:
    axes = figure.subplots(1, len(SCALES), sharey=True)
    for axis, scale in zip(axes, SCALES, strict=True):
        for number, method in enumerate(METHODS):
            layers = LAYERS[1:] if method == INDEPENDENT else LAYERS  # the input's units are independent
            means = [cells[n, scale][:, 0, number].mean().item() for n in layers]
            style = LINES.get(method, {"color": "0.5", "linestyle": ":"})
            axis.semilogy(layers, means, marker="o", markersize=3, label=method, **style)
        axis.set(title=f"weights of deviation {scale:g}", xlabel="layers", xticks=LAYERS, ylim=(1e-7, 1))
    axes[0].set_ylabel("KL of a marginal (nats)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
