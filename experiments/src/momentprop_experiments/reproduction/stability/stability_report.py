"""The report and figure on the stability of networks; the sentences follow from the numbers."""

import re
import statistics
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import NONE, number
from momentprop_experiments.drawing import draw
from momentprop_experiments.reproduction.by_seed import ON_INTERVALS, BySeed, by_chance
from momentprop_experiments.reproduction.outcome import table
from momentprop_experiments.reproduction.stability.robustness import CALIBRATED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NETWORKS = {
    "standard": "standard",
    "batch-norm": "batch normalization",
    "noise-drawn": "input noise drawn",
    "noise-ap2": "input noise by AP2",
    "noise-expected": "input noise by AP2, mean loss",
    "noise-calibrated": "input noise, calibrated",
    "bernoulli-ap2": "Bernoulli by AP2",
    "bernoulli-expected": "Bernoulli by AP2, mean loss",
    "bernoulli-calibrated": "Bernoulli, calibrated",
    "bernoulli-drawn": "Bernoulli drawn",
    "bernoulli-norm": "Bernoulli by AP2, normalized",
}
"""The networks of this experiment and of the deeper ones, named by how their training treats noise."""

CHANGES = {"noise": "Gaussian noise", "fgsm": "Gradient sign", "pgd": "Projected gradient descent, 10 steps"}
LEVELS = {"noise": "noise", "fgsm": "attacks", "pgd": "attacks"}
COLOURS = {
    "standard": "#c1272d",
    "batch-norm": "#e08e0b",
    "noise-drawn": "#7a5230",
    "noise-ap2": "#8a63d2",
    "noise-expected": "#4b2a7b",
    "noise-calibrated": "#d1499b",
    "bernoulli-ap2": "#1f4e9c",
    "bernoulli-expected": "#0b1f3f",
    "bernoulli-calibrated": "#22a7c4",
    "bernoulli-drawn": "#2a9d5c",
    "bernoulli-norm": "#e377c2",
}
_DASHES: dict[str, Any] = {"AP1": (0, (5, 2)), "AP2": "-", "sampling": (0, (1, 1)), CALIBRATED: "-"}

_STANDARD, _NORMALIZED, _DRAWN = "standard, AP1", "batch-norm, AP1", "noise-drawn, AP1"
_OURS, _EXPECTED = "bernoulli-ap2, AP2", "bernoulli-expected, AP2"

_CLAIMS = (
    ("Bernoulli by AP2 – standard", _OURS, _STANDARD),
    ("standard – batch normalization", _STANDARD, _NORMALIZED),
    ("(ours) Bernoulli by AP2 – standard with drawn noise", _OURS, _DRAWN),
    ("(ours) Bernoulli by AP2: tested by AP2 – by AP1", _OURS, "bernoulli-ap2, AP1"),
    ("(ours) Bernoulli by AP2 – drawn, both tested by AP2", _OURS, "bernoulli-drawn, AP2"),
    ("(ours) Bernoulli by AP2: mean of the loss – loss of the mean", _EXPECTED, _OURS),
    ("(ours) Bernoulli by AP2, mean loss – drawn, both tested by AP2", _EXPECTED, "bernoulli-drawn, AP2"),
)


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    judged = [*claims(data, _CLAIMS), f"{ON_CLAIMS} {by_chance(verdicts(_CLAIMS))}"]
    return "\n\n".join(
        [f"# {title}", _setting(data), "**What holds**", *judged, _on_odds(data), *tables(data), commands(data)]
    )


def tables(data: dict[str, Any], odds_of: Collection[str] | None = None) -> list[str]:
    """Return the tables of all accuracies, and of the odds of all or some curves."""
    parts = []
    for change, name in CHANGES.items():
        parts += [f"**{name}: accuracy**", _accuracies(data, change)]
    return [*parts, "**Odds of the errors**", _odds(data, odds_of or data["curves"])]


def commands(data: dict[str, Any]) -> str:
    """Return the table of the commands: what is the same for all stands above it."""
    words = {network: _options(command) for network, command in data["commands"].items()}
    same = [word for word in next(iter(words.values())) if all(word in each for each in words.values())]
    rows = [
        [NETWORKS[network], f"`{' '.join(word for word in each if word not in same)}`"]
        for network, each in words.items()
    ]
    return (
        f"**Commands**: `{' '.join(same)}` with these options, and with `--seed 1` and so on for the other seeds\n\n"
        f"{table(('network', 'options'), rows)}"
    )


def _options(command: str) -> list[str]:
    """Split a command into its beginning and its options with their values.

    >>> _options("momentprop train mlp --data mnist --graph")
    ['momentprop train mlp', '--data mnist', '--graph']
    """
    return re.split(r" (?=--)", command)


def _setting(data: dict[str, Any]) -> str:
    return (
        "The tables show how accurate a network of sigmoid units, 784-100-10, stays under noise and attacks. It is "
        f"trained for {data['epochs']} epochs on {data['data']}, and tested on the first {data['images']:,} test "
        f"images. Accuracies are in %, mean ± standard deviation over {seeds(data)}. {ON_LEVELS} Bernoulli networks "
        f"expect input noise of variance {data['variance']:g}. {on_draws(data)} AP2 is as in the paper's "
        f"implementation (`--family fitted`, softmax `simplified`). {ON_LOSS}"
    )


ON_LEVELS = (
    "Levels are for images whose pixels are normalized to variance 1. An attack changes no pixel by more than its "
    "level, but may leave the range of pixels. It lowers the log-likelihood of the true class by the tested method."
)

ON_LOSS = (
    "Training by AP2 minimizes the loss of the mean prediction, or with 'mean loss' (`--loss expected`) the mean of "
    "the loss, as training with drawn noise does."
)


def seeds(data: dict[str, Any]) -> str:
    """Say how many seeds are done, and how many are planned."""
    count, wanted = data["seeds"], data["wanted"]
    missing = f" (of {wanted}: the same command trains the others)"
    return f"{count} seed{'s' * (count > 1)}{missing * (count < wanted)}"


def on_draws(data: dict[str, Any]) -> str:
    """Say how many draws sampling takes."""
    return (
        f"Sampling averages {data['draws']} draws, or {data['gradient_draws']} for a gradient, which is "
        "straight-through for the units."
    )


Claim = tuple[str, str, str]
"""The words of a claim, the first curve, which is to be better, and the second."""


def claims(data: dict[str, Any], which: Sequence[Claim]) -> list[str]:
    """Return the tables of claims: by accuracy, and by the odds of the errors."""
    head = ("noise", "gradient sign", "descent")
    seeds = f"{data['seeds']} seed{'s' * (data['seeds'] > 1)}"
    odds = (f"errs at lower odds, {seeds}", *head)
    return [
        _judged(data, which, (f"more accurate, {seeds}", *head), difference, lambda gap: gap.points),
        _judged(data, which, odds, odds_difference, lambda gap: gap.text(digits=2)),
    ]


def _judged(
    data: dict[str, Any],
    which: Sequence[Claim],
    head: Sequence[str],
    gap_of: Callable[[dict[str, Any], str, str, str], BySeed | None],
    text: Callable[[BySeed], str],
) -> str:
    rows = []
    for words, better, worse in which:
        gaps = [gap_of(data, change, better, worse) for change in CHANGES]
        told = [NONE if gap is None else f"{gap.verdict}: {text(gap)}" for gap in gaps]
        rows.append([words, *told])
    return table(head, rows)


def verdicts(which: Sequence[Claim]) -> int:
    """Return the number of verdicts in the tables of claims."""
    return 2 * len(CHANGES) * len(which)


ON_CLAIMS = (
    "A verdict says whether the first of two networks, 'first – second', is better. The first table of verdicts has "
    "its gain in accuracy, in points, over the levels above zero. The second has by how many powers of ten its errors "
    "have lower odds, over the levels at which every seed errs. Both have the same noise and order of training images. "
    f"{ON_INTERVALS} ± leaves out the choice of test images."
)


def difference(data: dict[str, Any], change: str, better: str, worse: str) -> BySeed:
    """Return the difference in accuracy of two curves, averaged over the levels above zero."""
    one, other = (_above_zero(data, change, name, "accuracy") for name in (better, worse))
    return _averaged([[a - b for a, b in zip(*level, strict=True)] for level in zip(one, other, strict=True)])


def odds_difference(data: dict[str, Any], change: str, better: str, worse: str) -> BySeed | None:
    """Return by how much the better curve errs with lower odds, in powers of ten; None if a curve has no errors."""
    one, other = (_above_zero(data, change, name, "odds_of_errors") for name in (better, worse))
    levels = [pair for pair in zip(one, other, strict=True) if all(x is not None for each in pair for x in each)]
    return _averaged([[b - a for a, b in zip(*level, strict=True)] for level in levels]) if levels else None


def _above_zero(data: dict[str, Any], change: str, name: str, key: str) -> list[list[Any]]:
    """Return a figure of every seed at the levels above zero."""
    each = data["curves"][name][change][key]["each"]
    return [each[i][: data["seeds"]] for i, level in enumerate(data[LEVELS[change]]) if level > 0]


def _averaged(levels: Sequence[Sequence[float]]) -> BySeed:
    """Average over the levels, seed by seed."""
    return BySeed.of([statistics.fmean(seed) for seed in zip(*levels, strict=True)])


def _on_odds(data: dict[str, Any]) -> str:
    level = len(data["noise"]) - 1
    names = (_STANDARD, _NORMALIZED, _OURS)
    found = {name: data["curves"][name]["noise"]["odds_of_errors"]["mean"][level] for name in names}
    known = {name: odds for name, odds in found.items() if odds is not None}
    order = sorted(known, key=lambda name: -known[name])
    said = ", ".join(f"{curve_title(name)} {_power(known[name])}" for name in order)
    return (
        "The odds of an error are those that the network gives its wrong class against the true one, "
        f"$\\max_y q(y) / q(y^*)$. Under noise of deviation {data['noise'][level]:g} their geometric means are, "
        f"largest first: {said}."
    )


def curve_title(curve: str) -> str:
    """Return the words for a network and the method that it is tested by."""
    network, method = curve.split(", ")
    return f"{NETWORKS[network]} ({method})"


def _accuracies(data: dict[str, Any], change: str) -> str:
    levels = data[LEVELS[change]]
    rows = [
        [curve_title(name), *(_accuracy(found[change]["accuracy"], i) for i in range(len(levels)))]
        for name, found in data["curves"].items()
    ]
    return table(["network (method)", *(f"{level:g}" for level in levels)], rows)


def _accuracy(found: dict[str, Any], i: int) -> str:
    spread = found["spread"][i]
    return f"{100 * found['mean'][i]:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def _odds(data: dict[str, Any], chosen: Collection[str]) -> str:
    columns = [(change, i) for change in CHANGES for i in _shown(data[LEVELS[change]])]
    rows = [
        [curve_title(name), *(_power(found[change]["odds_of_errors"]["mean"][i]) for change, i in columns)]
        for name, found in data["curves"].items()
        if name in chosen
    ]
    short = {"noise": "noise", "fgsm": "gradient sign", "pgd": "descent"}
    heads = [f"{short[change]} {data[LEVELS[change]][i]:g}" for change, i in columns]
    return table(["network (method)", *heads], rows)


def _shown(levels: Sequence[float]) -> list[int]:
    """Return the positions of a middle level and the last one."""
    return sorted({len(levels) // 2, len(levels) - 1})


def _power(exponent: float | None) -> str:
    return NONE if exponent is None else number(10**exponent)


_SHOWN = (_STANDARD, _NORMALIZED, _DRAWN, _OURS, _EXPECTED, "bernoulli-drawn, sampling")
"""The curves in the figure: every network under the method that trained it."""


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw accuracy, its gain over the standard network and odds against the level, for noise and each attack."""
    return draw(out, name, (10.2, 8.6), lambda figure: _plot(figure, data))


def _plot(figure: "Figure", data: dict[str, Any]) -> None:
    panels = figure.subplots(3, len(CHANGES), sharex="col", sharey="row")
    for (above, middle, below), (change, title) in zip(panels.T, CHANGES.items(), strict=True):
        for name in _SHOWN:
            curve(above, data, name, change, "accuracy", 100)
            curve(below, data, name, change, "odds_of_errors", 1)
            if name not in (_STANDARD, _NORMALIZED):
                _gain(middle, data, name, change)
        middle.axhline(0, color=COLOURS["standard"], linewidth=0.8)
        above.set_title(title)
        below.set_yscale("log")  # of the logarithm of the odds, which range from 4 to 10^19
        below.set_yticks((0.5, 1, 2, 5, 10, 20), ("3.2", "10", "$10^2$", "$10^5$", "$10^{10}$", "$10^{20}$"))
        below.minorticks_off()
        below.set_xlabel("deviation of the noise" if change == "noise" else "largest change of a pixel")
    panels[0, 0].set_ylabel("test accuracy (%)")
    panels[1, 0].set_ylabel("points above the standard\nnetwork, 95 % intervals")
    panels[2, 0].set_ylabel("odds of errors\n(logarithm of the logarithm)")
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3)


def _gain(axis: "Axes", data: dict[str, Any], name: str, change: str) -> None:
    """Draw how much more accurate a network is than the standard one, with the intervals over the seeds."""
    mine, standard = (data["curves"][each][change]["accuracy"]["each"] for each in (name, _STANDARD))
    pairs = [[a - b for a, b in zip(*level, strict=True)] for level in zip(mine, standard, strict=True)]
    gains = [BySeed.of(each) for each in pairs]
    x = data[LEVELS[change]]
    axis.errorbar(
        x,
        [100 * gain.mean for gain in gains],
        yerr=[100 * (gain.half_width or 0.0) for gain in gains],
        color=COLOURS[name.split(", ")[0]],
        linestyle=_DASHES[name.split(", ")[1]],
        marker=".",
        markersize=4,
        capsize=2,
        elinewidth=0.8,
    )


def curve(axis: "Axes", data: dict[str, Any], name: str, change: str, key: str, scale: float) -> None:
    """Draw one curve with its spread."""
    network, method = name.split(", ")
    known = [each for each in _points(data, name, change, key) if each[1] is not None]
    x, y = [level for level, _, _ in known], [scale * mean for _, mean, _ in known]
    colour = COLOURS[network]
    axis.plot(x, y, color=colour, linestyle=_DASHES[method], label=curve_title(name), marker=".", markersize=4)
    low, high = ([a + sign * scale * (b or 0.0) for a, (_, _, b) in zip(y, known, strict=True)] for sign in (-1, 1))
    axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)


def _points(data: dict[str, Any], name: str, change: str, key: str) -> list[tuple[float, Any, Any]]:
    """Return level, mean and spread along a curve; an attack starts with the unchanged images."""
    found = data["curves"][name]
    points = [*zip(data[LEVELS[change]], found[change][key]["mean"], found[change][key]["spread"], strict=True)]
    clean = found["noise"][key]
    return points if change == "noise" else [(0.0, clean["mean"][0], clean["spread"][0]), *points]
