r"""Does the gradient reach deeper with AP2, as the paper says? Its norm, layer by layer, in deep Bernoulli networks.

The paper: "The automatic scaling by uncertainty allows the gradient to be propagated deeper through the network." In
narrow networks exact sums give the true gradient. In wide ones the straight-through and the score function gradient
average over draws.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from momentprop.sampling import progress
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.gradients.deep_gradients import (
    EXACT,
    METHODS,
    SCORE,
    STRAIGHT,
    by_layer,
    expected_decay,
)
from momentprop_experiments.reproduction.gradients.deep_training import trained
from momentprop_experiments.reproduction.outcome import Outcome, numbers, rounded, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "gradient-depth"
TITLE = "How the gradient changes with depth in Bernoulli networks, by every method (tables, figure)"

GAINS = (2.0, 4.0, 16.0, 64.0)
NARROW, WIDE = "narrow", "wide"


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much to measure and train."""

    networks: int
    draws: int
    depths: tuple[int, ...]
    seeds: int
    epochs: int
    images: int | None = None
    sizes: dict[str, tuple[int, int]] = dataclasses.field(default_factory=lambda: {NARROW: (8, 8), WIDE: (100, 12)})


FULL = Effort(100, 1000, (1, 2, 4, 8), 5, 10)
QUICK = Effort(2, 20, (2,), 1, 1, 200)

_STYLES = {
    EXACT: LINES["exact"],
    "AP1": LINES["AP1"],
    "AP2": LINES["AP2 (default)"],
    STRAIGHT: LINES["AP2b"],
    SCORE: LINES["sampling"] | {"linestyle": ":"},
}


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Measure gradients and train; `quick` takes two networks of each kind, and one training of each method."""
    effort = QUICK if options.quick else FULL
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cases = [case for kind in effort.sizes for case in _cases(kind, effort)]
    rows = trained(effort.depths, effort.seeds, effort.epochs, effort.images)
    data = {**dataclasses.asdict(effort), "cases": cases, "training": rows}
    return Outcome(data, _report(data), draw(out, NAME, (10.0, 5.4), lambda figure: _plot(figure, cases)))


def _cases(kind: str, effort: Effort) -> list[dict[str, Any]]:
    """Measure random networks of one size at every gain."""
    width, depth = effort.sizes[kind]
    methods = METHODS if kind == NARROW else METHODS[1:]
    cases = []
    with progress(len(GAINS) * effort.networks, f"{NAME}, {kind}") as bar:
        for gain in GAINS:
            norms, cosines = [], []
            for _ in range(effort.networks):
                norm, cosine = by_layer(width, depth, gain, methods, effort.draws)
                norms.append(norm)
                cosines.append(cosine)
                bar.update(1)
            cases.append(_case(kind, gain, methods, torch.stack(norms), torch.stack(cosines)))
    return cases


def _case(kind: str, gain: float, methods: Sequence[str], norms: Tensor, cosines: Tensor) -> dict[str, Any]:
    """Summarize networks: medians of the norms, and means of the cosines with their standard errors."""
    typical = norms.median(0).values
    known = EXACT in methods
    return {
        "kind": kind,
        "gain": gain,
        "norm": {name: numbers(row, 4) for name, row in zip(methods, typical, strict=True)},
        "cosine": {name: numbers(row, 3) for name, row in zip(methods, cosines.mean(0), strict=True)} if known else {},
        "cosine_error_of_first_layer": {
            name: rounded((cosines[:, i, 0].std() / len(cosines) ** 0.5).item(), 2) for i, name in enumerate(methods)
        }
        if known
        else {},
        "expected_decay": {name: rounded(expected_decay(gain, name)) for name in ("AP1", "AP2")},
    }


def _report(data: dict[str, Any]) -> str:
    sizes = data["sizes"]
    parts = [
        f"# {TITLE}",
        "The first tables show how much of the gradient reaches the first layer. They compare norms of the gradient in "
        f"the weights of a layer, each a median over {data['networks']} random networks. The gain is the deviation of "
        f"the weights, times the root of the number of inputs. The rows {STRAIGHT} and {SCORE} are averages over "
        f"{data['draws']:,} draws.",
    ]
    for kind in sizes:
        width, depth = sizes[kind]
        cases = [case for case in data["cases"] if case["kind"] == kind]
        head = ("method", *(f"gain {case['gain']:g}" for case in cases))
        parts += [
            f"**{depth} layers of {width} units: the norm at the first layer, divided by that at the last**",
            table(head, [(name, *(_ratio(case, name) for case in cases)) for name in cases[0]["norm"]]),
        ]
        if kind == NARROW:
            parts += [
                "**The same networks: the norm at the first layer, divided by the exact one**",
                table(head, [(name, *(_to_exact(case, name) for case in cases)) for name in METHODS[1:]]),
                "**The same networks: the cosine with the exact gradient at the first layer** (mean ± standard error; "
                "1 is the same direction)",
                table(head, [(name, *(_cosine(case, name) for case in cases)) for name in METHODS[1:]]),
            ]
    return "\n\n".join([*parts, *_trainings(data)])


def _ratio(case: dict[str, Any], name: str) -> str:
    norms = case["norm"][name]
    return f"{norms[0] / norms[-1]:.2g}"


def _to_exact(case: dict[str, Any], name: str) -> str:
    return f"{case['norm'][name][0] / case['norm'][EXACT][0]:.2g}"


def _cosine(case: dict[str, Any], name: str) -> str:
    return f"{case['cosine'][name][0]:.2f} ± {case['cosine_error_of_first_layer'][name]:.2f}"


def _trainings(data: dict[str, Any]) -> list[str]:
    """Return the table of test accuracies: of the network of random units, and as the method predicts."""
    rows = data["training"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = []
    for method in methods:
        for key, label in (("sampled", "the random units"), ("own", "its own prediction")):
            found = [
                [100 * row[key] for row in rows if row["method"] == method and row["depth"] == depth]
                for depth in data["depths"]
            ]
            spans = [f"{sum(x) / len(x):.1f} ({min(x):.1f} to {max(x):.1f})" for x in found]
            cells.append((method, label, *spans))
    head = ("trained by", "accuracy of", *(f"{depth} layer{'s' * (depth > 1)}" for depth in data["depths"]))
    return [
        f"**Test accuracy in % on the embedded digits after {data['epochs']} epochs: mean and range of {data['seeds']} "
        f"seed{'s' * (data['seeds'] > 1)}**",
        "'The random units' is the trained network itself, averaged over draws; 'its own prediction' is what the "
        "method predicts.",
        table(head, cells),
    ]


def _plot(figure: "Figure", cases: Sequence[dict[str, Any]]) -> None:
    kinds = list(dict.fromkeys(case["kind"] for case in cases))
    axes = figure.subplots(len(kinds), len(GAINS), squeeze=False)
    for case in cases:
        axis = axes[kinds.index(case["kind"])][GAINS.index(case["gain"])]
        for name, norms in case["norm"].items():
            axis.semilogy(range(1, len(norms) + 1), norms, label=name, **(_STYLES[name] | {"linewidth": 1.5}))
        axis.set(title=f"{case['kind']}, gain {case['gain']:g}")
        least, most = (math.log10(x) for x in axis.get_ylim())
        axis.set_ylim(10 ** math.floor(least), 10 ** math.ceil(most))  # so that two powers of ten have labels
        axis.minorticks_off()
    for axis in axes[-1]:
        axis.set_xlabel("layer")
    for row in axes:
        row[0].set_ylabel("norm of the gradient")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(METHODS))
