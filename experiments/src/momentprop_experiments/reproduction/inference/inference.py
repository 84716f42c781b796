r"""Feed-forward inference compared with loopy belief propagation and mean field, in small sigmoid belief networks.

The paper calls the iterative methods too demanding for networks of practical size. The experiment shows what they give
where exact sums give the truth: for the prediction, which AP2 computes, and for the posterior of all layers when the
last one is observed, which AP2 cannot compute.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from momentprop.sampling import progress
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.inference.belief_propagation import propagate_beliefs
from momentprop_experiments.reproduction.inference.layered import LayeredNetwork
from momentprop_experiments.reproduction.inference.mean_field import mean_field
from momentprop_experiments.reproduction.logistic_units.feed_forward import network
from momentprop_experiments.reproduction.logistic_units.random_networks import RandomNetwork, one_thread
from momentprop_experiments.reproduction.outcome import Outcome, rounded, table
from momentprop_experiments.turns import Clock, take_turns
from momentprop_experiments.turns import milliseconds as median

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "inference"
TITLE = "AP2 compared with loopy belief propagation and mean field in small belief networks (tables, figure)"

LAYERS, MOST = 3, 8
SCALES = (0.5, 1.0, 2.0, 4.0)
WIDTHS = (4, 8, 12)
DRAWS = 100

BELIEFS, FIELD, IGNORANT = "belief propagation", "mean field", "AP2, observation ignored"
PREDICTING = ("AP1", "AP2", f"{DRAWS} draws", BELIEFS, FIELD)
OBSERVING = (IGNORANT, BELIEFS, FIELD)
_STYLES = {
    "AP1": LINES["AP1"],
    "AP2": LINES["AP2 (default)"],
    IGNORANT: LINES["AP2 (default)"],
    f"{DRAWS} draws": LINES["sampling"],
    BELIEFS: LINES["AP2b"],
    FIELD: LINES["AP2a"],
}


class Measured(NamedTuple):
    """The results for one network."""

    scale: float
    predicted: Tensor  # shape: (methods, 2): KL and absolute error of the last layer's marginals
    observed: Tensor  # shape: (methods, 2): KL and absolute error of the other layers' marginals
    sweeps: dict[str, int]
    settled: bool


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Measure random networks; `quick` takes one of each kind."""
    each = 1 if options.quick else 50
    with torch.random.fork_rng(), one_thread(), progress(each * len(SCALES), NAME) as bar:
        torch.manual_seed(0)
        measured = []
        for scale in SCALES:
            for _ in range(each):
                measured.append(measure(scale))
                bar.update(1)
        times = milliseconds(WIDTHS[:1] if options.quick else WIDTHS)
    data = _data(measured, each, times)
    return Outcome(data, _report(data), draw(out, NAME, (8.6, 3.5), lambda figure: _plot(figure, data)))


@torch.no_grad()
def measure(scale: float) -> Measured:
    """Draw a network and infer by every method, first the last layer, then the others given a draw of it."""
    drawn = RandomNetwork.draw(LAYERS, scale, MOST)
    tables, start = LayeredNetwork.of(drawn.maps, drawn.input), _forward(drawn)
    truth = tables.exact()[-1]
    predicted = torch.tensor([errors(truth, infer()) for infer in predictors(drawn).values()])
    seen = network(drawn.maps).sample(drawn.input, 1)[-1][0]
    hidden = torch.cat(tables.exact(seen))
    beliefs = propagate_beliefs(tables, seen)
    fields, sweeps = mean_field(tables, start, seen)
    observed = [errors(hidden, torch.cat(q)) for q in (start[:-1], beliefs.marginals, fields)]
    return Measured(scale, predicted, torch.tensor(observed), {BELIEFS: beliefs.sweeps, FIELD: sweeps}, beliefs.settled)


def predictors(drawn: RandomNetwork) -> dict[str, Callable[[], Tensor]]:
    """Return functions that give the marginals of the last layer by each method."""
    belief, tables = network(drawn.maps), LayeredNetwork.of(drawn.maps, drawn.input)
    return {
        "AP1": lambda: belief.propagate(drawn.input, "ap1")[-1].loc,
        "AP2": lambda: belief.propagate(drawn.input)[-1].loc,
        f"{DRAWS} draws": lambda: _of_draws(drawn),
        BELIEFS: lambda: propagate_beliefs(tables).marginals[-1],
        FIELD: lambda: mean_field(tables, _forward(drawn))[0][-1],
    }


def _forward(drawn: RandomNetwork) -> list[Tensor]:
    """Return the probabilities of all units by AP2."""
    return [drawn.input.probs, *(value.loc for value in network(drawn.maps).propagate(drawn.input))]


def _of_draws(drawn: RandomNetwork) -> Tensor:
    """Return the mean of the last layer's probabilities over draws of the layer before it."""
    state = network(drawn.maps[:-1]).sample(drawn.input, DRAWS)[-1]
    return torch.sigmoid(drawn.maps[-1](state)).mean(0)


def errors(truth: Tensor, q: Tensor) -> tuple[float, float]:
    """Return the divergence of marginals in nats and their absolute error, averaged over units.

    >>> errors(torch.tensor([0.5]), torch.tensor([0.25]))
    (0.1438..., 0.25)
    """
    q = q.clamp(1e-12, 1 - 1e-12)
    kl = torch.xlogy(truth, truth / q) + torch.xlogy(1 - truth, (1 - truth) / (1 - q))
    return kl.mean().item(), (truth - q).abs().mean().item()


@torch.no_grad()
def milliseconds(widths: Sequence[int]) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of each method on a network with layers of each width, measured in turns."""
    found: dict[str, dict[str, float]] = {name: {} for name in PREDICTING}
    for width in widths:
        drawn = RandomNetwork.draw(LAYERS, 1.0, width, fewest=width)
        rounds = take_turns(predictors(drawn), Clock(rounds=7, seconds=10.0, turn=0.02))
        for name in PREDICTING:
            found[name][f"{width}"] = rounded(median(rounds, name), 3)  # type: ignore[assignment]
    return found


def _data(measured: Sequence[Measured], each: int, times: dict[str, dict[str, float]]) -> dict[str, Any]:
    groups = {"all": measured, **{f"weights {s:g}": [m for m in measured if m.scale == s] for s in SCALES}}
    return {
        "networks_per_scale": each,
        "layers": LAYERS,
        "most_units": MOST,
        "prediction": {
            name: {
                group: _summary([m.predicted[i] for m in found], ("kl", "absolute_error"))
                for group, found in groups.items()
            }
            for i, name in enumerate(PREDICTING)
        },
        "milliseconds": times,
        "observed": {
            name: {
                group: _summary([m.observed[i] for m in found], ("kl", "absolute_error"))
                for group, found in groups.items()
            }
            for i, name in enumerate(OBSERVING)
        },
        "median_sweeps": {
            name: torch.tensor([m.sweeps[name] for m in measured]).median().item() for name in (BELIEFS, FIELD)
        },
        "belief_propagation_settled": sum(m.settled for m in measured) / len(measured),
    }


def _summary(rows: Sequence[Tensor], names: Sequence[str]) -> dict[str, list[float | None]]:
    """Return mean and standard error of every column."""
    columns = torch.stack(list(rows)).double()
    error = columns.std(0) / len(columns) ** 0.5 if len(columns) > 1 else torch.zeros(len(columns[0]))
    return {name: [rounded(columns[:, i].mean().item()), rounded(error[i].item(), 2)] for i, name in enumerate(names)}


def _report(data: dict[str, Any]) -> str:
    steps = data["median_sweeps"]
    parts = [
        f"# {TITLE}",
        f"The tables compare each method with exact sums, in {data['networks_per_scale']} random networks for each "
        f"scale of the weights, with {data['layers']} layers of up to {data['most_units']} units and a random input. "
        "Numbers are means over the networks ± their standard errors, and less is better. The first column has all "
        "networks; the others have those whose weights have the standard deviation in the head. In a prediction only "
        "the input is known; the last tables are for an observed last layer.",
        "**Prediction: divergence KL(exact || method) of a marginal of the last layer, in thousandths of a nat**",
        _table(data["prediction"], "kl"),
        "**Prediction: absolute error of that marginal, in thousandths**",
        _table(data["prediction"], "absolute_error"),
        f"**Prediction: milliseconds on one thread, in networks with {LAYERS} layers of equal width**",
        _times(data["milliseconds"]),
        "**Last layer observed: absolute error of the marginals of the other layers, in thousandths**",
        _table(data["observed"], "absolute_error"),
        "**Last layer observed: divergence KL(exact || method) of those marginals, in thousandths of a nat**",
        _table(data["observed"], "kl"),
        f"With an observation, belief propagation takes a median of {steps[BELIEFS]:g} sweeps, and settles in "
        f"{data['belief_propagation_settled']:.0%} of the networks. Mean field takes a median of {steps[FIELD]:g}.",
    ]
    return "\n\n".join(parts)


def _times(found: dict[str, dict[str, float]]) -> str:
    head = ("method", *(f"{width} units" for width in next(iter(found.values()))))
    return table(head, [(name, *(f"{ms:.2g}" for ms in each.values())) for name, each in found.items()])


def _table(found: dict[str, Any], measure: str) -> str:
    groups = list(next(iter(found.values())))
    rows = [
        (
            name,
            *(
                f"{1000 * mean:.3g} ± {float(f'{1000 * error:.1g}'):g}"
                for mean, error in (each[g][measure] for g in groups)
            ),
        )
        for name, each in found.items()
    ]
    return table(("method", *groups), rows)


def _plot(figure: "Figure", data: dict[str, Any]) -> None:
    axes = figure.subplots(1, 2)
    titles = {"prediction": "prediction: the last layer", "observed": "last layer observed: the others"}
    for axis, (kind, title) in zip(axes, titles.items(), strict=True):
        for name, each in data[kind].items():
            means = [1000 * each[f"weights {scale:g}"]["absolute_error"][0] for scale in SCALES]
            axis.loglog(SCALES, means, marker="o", markersize=3, label=name, **_STYLES[name])
        axis.set_xticks(SCALES, [f"{scale:g}" for scale in SCALES])
        axis.set(title=title, xlabel="deviation of the weights")
        axis.minorticks_off()
        axis.legend(loc="lower right")
    axes[0].set_ylabel("absolute error, in thousandths")
