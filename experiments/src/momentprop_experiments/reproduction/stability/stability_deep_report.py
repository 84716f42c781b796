"""The report and figure on the stability of deeper networks; the sentences follow from the numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop_experiments.drawing import draw
from momentprop_experiments.reproduction.by_seed import by_chance, counted
from momentprop_experiments.reproduction.stability.robustness import CALIBRATED
from momentprop_experiments.reproduction.stability.stability_report import (
    CHANGES,
    ON_CLAIMS,
    ON_LEVELS,
    ON_LOSS,
    claims,
    commands,
    curve,
    difference,
    on_draws,
    seeds,
    tables,
    verdicts,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {"mlp": "MLP", "lenet": "LeNet", "cifar": "CIFAR network"}

_STANDARD, _NORMALIZED, _DRAWN = "standard, AP1", "batch-norm, AP1", "noise-drawn, AP1"
_NOISE, _NOISE_CALIBRATED = "noise-ap2, AP2", f"noise-calibrated, {CALIBRATED}"
_UNITS, _UNITS_CALIBRATED = "bernoulli-ap2, AP2", f"bernoulli-calibrated, {CALIBRATED}"
_UNITS_DRAWN = "bernoulli-drawn, sampling"
_NOISE_EXPECTED, _UNITS_EXPECTED = "noise-expected, AP2", "bernoulli-expected, AP2"

_SCALES = (
    ("input noise by AP2 – standard", _NOISE, _STANDARD),
    ("Bernoulli by AP2 – standard", _UNITS, _STANDARD),
)
_CALIBRATION = (
    ("input noise by AP2: calibrated – not", _NOISE_CALIBRATED, _NOISE),
    ("Bernoulli by AP2: calibrated – not", _UNITS_CALIBRATED, _UNITS),
)
_EXPECTED = (
    ("input noise by AP2: mean loss – not", _NOISE_EXPECTED, _NOISE),
    ("Bernoulli by AP2: mean loss – not", _UNITS_EXPECTED, _UNITS),
)
_OTHERS = (
    ("input noise: by AP2 – drawn", _NOISE, _DRAWN),
    ("Bernoulli: by AP2 – drawn", _UNITS, _UNITS_DRAWN),
    ("standard – batch normalization", _STANDARD, _NORMALIZED),
)

_ALL = (*_SCALES, *_CALIBRATION, *_EXPECTED, *_OTHERS)


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [f"# {title}", _setting(data), "**In short**", _answers(data)]
    if data["missing"]:
        names = ", ".join(_NAMES[name] for name in data["missing"])
        parts.append(f"Not complete: no seed of the {names} is done; the same command goes on with it.")
    for name, found in data["networks"].items():
        parts += [f"## {_NAMES[name]} on {found['data']}", _about(found)]
        parts += [*claims(found, _ALL), *tables(found, _SHOWN)]
    chance = by_chance(verdicts(_ALL) * len(data["networks"]))
    return "\n\n".join(
        [*parts, "## How to read and to repeat it", f"{ON_CLAIMS} {chance}", *_commands(data["networks"])]
    )


def _commands(networks: dict[str, Any]) -> list[str]:
    """Return the commands of the first network, and how those of the others differ."""
    first, *others = networks
    said = [
        f"Those of the {_NAMES[name]} begin with `momentprop train {name} --data {networks[name]['data']}` and have "
        f"{networks[name]['epochs']} epochs."
        for name in others
    ]
    return [f"Of the {_NAMES[first]}:", commands(networks[first]), *said]


def _setting(data: dict[str, Any]) -> str:
    return (
        "The tables show how accurate networks stay under noise and attacks. All of a kind begin at the same point and "
        f"see the images in the same order. Input noise in training has variance {data['variance']:g}, drawn or by "
        "AP2. In calibrated networks, AP2 corrects its variances by a factor for every channel, fitted after every "
        f"epoch to 100 draws on 64 training images. {ON_LOSS} Networks are tested by the method of their training, and "
        f"by AP1. {ON_LEVELS}"
    )


def _about(found: dict[str, Any]) -> str:
    return (
        f"{found['epochs']} epochs, the first {found['images']:,} test images; accuracy in %, mean ± deviation over "
        f"{seeds(found)}. {on_draws(found)}"
    )


def _answers(data: dict[str, Any]) -> str:
    """Say for each network whether AP2 scales, and whether calibration in the training helps."""
    return "\n".join(
        f"* {_NAMES[name]}. {_answer('Is AP2 more accurate than the standard network?', found, _SCALES)} "
        f"{_answer('Does calibration in training help?', found, _CALIBRATION)} "
        f"{_answer('Does the mean of the loss help?', found, _EXPECTED)}"
        for name, found in data["networks"].items()
    )


def _answer(words: str, found: dict[str, Any], which: Any) -> str:
    """Say how often the claims of one kind hold for the accuracy, under noise and both attacks."""
    told = counted(difference(found, change, *rest).verdict for _, *rest in which for change in CHANGES)
    return f"{words} {told[0].upper()}{told[1:]}."


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw accuracy against the level: two rows of panels for each network, a panel for noise and for each attack."""
    return draw(out, name, (10.2, 4.6 * len(data["networks"]) + 1.2), lambda figure: _plot(figure, data["networks"]))


_ROWS = {
    "noise on the input": (_STANDARD, _NORMALIZED, _DRAWN, _NOISE, _NOISE_EXPECTED, _NOISE_CALIBRATED),
    "Bernoulli units": (_STANDARD, _UNITS_DRAWN, _UNITS, _UNITS_EXPECTED, _UNITS_CALIBRATED),
}
"""The curves in each row of the figure: every network under the method that trained it."""

_SHOWN = {name for row in _ROWS.values() for name in row}


def _plot(figure: "Figure", networks: dict[str, Any]) -> None:
    panels = figure.subplots(2 * len(networks), len(CHANGES), sharey="row", squeeze=False)
    rows = [(name, found, words, shown) for name, found in networks.items() for words, shown in _ROWS.items()]
    for row, (name, found, words, shown) in zip(panels, rows, strict=True):
        for axis, (change, title) in zip(row, CHANGES.items(), strict=True):
            for each in shown:
                curve(axis, found, each, change, "accuracy", 100)
            if words == "Bernoulli units":
                axis.set_xlabel("deviation of the noise" if change == "noise" else "largest change of a pixel")
            else:
                axis.set_title(f"{title.split(',')[0]}, {_NAMES[name]}")
        row[0].set_ylabel(f"{words}:\ntest accuracy (%)")
    legend: dict[str, Any] = {}
    for axis in panels[:2, 0]:
        lines, names = axis.get_legend_handles_labels()
        legend |= dict(zip(names, lines, strict=True))
    figure.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=3)
