"""The report and figure on five ways to initialize or normalize a network."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop_experiments.drawing import draw
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NETWORKS = {
    "cifar": "CIFAR-10 network (9 layers, LReLU)",
    "plain20": "Plain network (20 layers, ReLU)",
    "lenet": "LeNet (4 layers, LReLU)",
}
_WAYS = {
    "none": "none (torch's initial point)",
    "bn-init": "BN initialization",
    "analytic-init": "analytic initialization",
    "bn": "batch normalization",
    "analytic": "analytic normalization",
}
_LINES: dict[str, dict[str, Any]] = {
    "none": {"color": "0.35", "linestyle": (0, (5, 2))},
    "bn-init": {"color": "#e08e0b", "linestyle": "-."},
    "analytic-init": {"color": "#4c79ba", "linestyle": (0, (1, 1)), "linewidth": 2.0},
    "bn": {"color": "#c1272d", "linestyle": (0, (8, 2, 2, 2))},
    "analytic": {"color": "#1f4e9c", "linestyle": "-", "linewidth": 2.2},
}


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [
        f"# {title}",
        "The tables compare five ways to initialize or normalize a network. All use standard training, with Adam, "
        "batches of 128, and a learning rate of 0.001 · 0.96^k in epoch k. The initializations change the weights "
        "once, before the first step. Batch normalization takes the statistics of each batch. Analytic normalization "
        "computes them at every step from the weights and the statistics of the input, and does not look at the batch. "
        "Each way was trained once, with one seed, so these runs settle no difference between the ways.",
    ]
    for network, found in data["networks"].items():
        parts += [f"**{_NETWORKS[network]}, {found['epochs']} epochs on {found['data']}**", _figures(found["ways"])]
    parts += ["**Commands**", _commands(data)]
    return "\n\n".join(parts)


def _figures(ways: dict[str, Any]) -> str:
    head = ("way", "training loss: epoch 1", "last", "validation accuracy: epoch 1", "last", "test accuracy")
    rows = [
        [
            _WAYS[way],
            *(f"{found['train_loss'][i]:.3f}" for i in (0, -1)),
            *(f"{found['validation_accuracy'][i]:.1%}" for i in (0, -1)),
            f"{found['test']['accuracy']:.1%}",
        ]
        for way, found in ways.items()
    ]
    return table(head, rows)


def _commands(data: dict[str, Any]) -> str:
    rows = [
        [f"{_NETWORKS[network].split(' (')[0]}, {_WAYS[way].split(' (')[0]}", f"`{found['command']}`"]
        for network, networks in data["networks"].items()
        for way, found in networks["ways"].items()
    ]
    return table(("case", "command"), rows)


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw the training loss and the validation accuracy against the epoch, a column of panels for each network."""
    return draw(out, name, (4.2 * len(data["networks"]) + 0.4, 5.8), lambda figure: _plot(figure, data))


def _plot(figure: "Figure", data: dict[str, Any]) -> None:
    panels = figure.subplots(2, len(data["networks"]), sharex="col", sharey="row", squeeze=False)
    for (above, below), (network, found) in zip(panels.T, data["networks"].items(), strict=True):
        for way, numbers in found["ways"].items():
            epochs = range(1, len(numbers["train_loss"]) + 1)
            above.plot(epochs, numbers["train_loss"], label=_WAYS[way], **_LINES[way])
            below.plot(epochs, [100 * x for x in numbers["validation_accuracy"]], **_LINES[way])
        above.set_title(_NETWORKS[network])
        below.set_xlabel("epoch")
        below.xaxis.get_major_locator().set_params(integer=True)
    panels[0, 0].set_ylabel("training loss (nats)")
    panels[1, 0].set_ylabel("validation accuracy (%)")
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=1 + len(panels.T))
