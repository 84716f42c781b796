"""The report and figure of an accuracy table, with the paper's numbers beside ours."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import NONE, brief_worth, number
from momentprop_experiments.drawing import LINES, draw, logarithmic
from momentprop_experiments.reproduction.accuracy.accuracy import DIVERGENCES, FAMILIES, SCALES
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTES = """\
* `eps_mean` is the error of the means in deviations: the average of |μ - μ*| divided by the average of σ*, where the
  star marks the moments of the draws. Less is better.
* `eps_std` is the factor by which the deviations are off: the geometric mean of σ/σ*. 1 is right.
* KL is the divergence of the class posterior from that of the draws, in nats. The column KL uses the paper's simplified
  softmax, KL' the paper's full softmax, and 'KL race' ours. Each is a mean over few images, and one image can make up
  nearly all of it; `accuracy-scales` has means over more images, with errors.
* Normal, Logistic and Fitted are the families of values in AP2. Normal takes exact expectations; Fitted takes the
  formulas of the paper's implementation.
* The floor is the error that even a perfect method would show, because the draws are finite.
* The columns are layers: C is a convolution, A an activation (with the dropout after it), F the last layer, and P the
  average pooling."""

_LAST = "In each group of columns, the paper's number comes first and ours follow."

_WORTH = (
    "The table says how many draws would have the same error at the output as one pass of the method. The last columns "
    "are about class probabilities."
)

_SCALES = (
    "The paper does not say whether it adds the noise N(0, v) to normalized inputs or to pixels. The table tries each "
    "reading, and says how far AP1's `eps_mean` is then from the printed one: the root mean square of "
    "log(ours / printed) over the layers. The smallest number in a row fits best. Our `eps_mean` at the last layer is "
    "in brackets. Here 300 draws are the truth; their floor is 0.046, so smaller errors cannot be compared."
)


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [
        f"# {title}",
        "The tables compare AP1 and AP2 with Monte Carlo draws at every layer, and put the paper's numbers beside "
        f"ours. The errors are averages over {data['data']} and over all units of a layer, or over "
        f"{data['units_per_layer']:,} units picked at random if a layer has more. {_draws(data)}",
        _NOTES,
        "**The paper's numbers and ours at the last layer**",
        _LAST,
        _last_layer(data),
        "**How many draws have the same error at the output**",
        _WORTH,
        _worth(data),
        "**What the variance means**",
        _SCALES,
        _scales(data),
    ]
    for case in data["cases"].values():
        about = f"{case['draws']:,} draws" + (
            "; commented out in the paper's source" if case["printed"]["commented_out"] else ""
        )
        parts += [f"**{case['title']}** (`{case['network']}`, {about})", _layers(case, data["columns"])]
    return "\n\n".join(parts)


def _draws(data: dict[str, Any]) -> str:
    fewest, *more = sorted({case["draws"] for case in data["cases"].values()})
    several = f", or from {more[-1]:,} where these are too few to show AP2's error at the output" if more else ""
    return f"The truth comes from {fewest:,} draws{several}."


def _last_layer(data: dict[str, Any]) -> str:
    head = ["case", "draws"]
    for figure, names in (
        ("AP1 eps_mean", ("ours",)),
        ("AP2 eps_mean", FAMILIES.values()),
        ("AP2 eps_std", FAMILIES.values()),
        ("KL'", FAMILIES.values()),
    ):
        head += [f"{figure}: paper", *names]
    return table(head, [_last_row(case) for case in data["cases"].values()])


def _last_row(case: dict[str, Any]) -> list[str]:
    found, printed = case["methods"], case["printed"]
    row = [case["title"], f"{case['draws']:,}", _shown(printed["ap1"][-1]), number(found["ap1"]["eps_mean"][-1])]
    row += [_shown(printed["ap2"][-1]), *(number(found[name]["eps_mean"][-1]) for name in FAMILIES)]
    row += [_shown(printed["std"][-1]), *(number(found[name]["eps_std"][-1]) for name in FAMILIES)]
    return [*row, _shown(printed["kl_logistic"]), *(number(found[name]["kl_logistic"]) for name in FAMILIES)]


def _worth(data: dict[str, Any]) -> str:
    every, told = {"ap1": "AP1", **FAMILIES}, {"means": "eps_mean", "deviations": "rms_log_std", "classes": "kl_race"}
    head, keys = ["case"], []
    for what, figure in told.items():
        names = FAMILIES if what == "deviations" else every
        head += [f"{what}: {family}" if i == 0 else family for i, family in enumerate(names.values())]
        keys += [(name, "kl" if (name, what) == ("ap1", "classes") else figure) for name in names]
    rows = []
    for case in data["cases"].values():
        counts = [case["methods"][name]["worth"][figure] for name, figure in keys]
        rows.append([case["title"], *(brief_worth(count, case["draws"]) for count in counts)])
    return table(head, rows)


def _scales(data: dict[str, Any]) -> str:
    rows = []
    for case in data["cases"].values():
        if case["scales"] is not None:
            found = [case["scales"][name] for name in SCALES]
            cells = [f"{number(scale['distance'])} ({number(scale['eps_mean'][-1])})" for scale in found]
            rows.append([case["title"], _shown(case["printed"]["ap1"][-1]), *cells])
    return table(["case", "AP1 at the last layer, paper", *SCALES.values()], rows)


def _layers(case: dict[str, Any], columns: Sequence[str]) -> str:
    """Return the table of one case, in the paper's form."""
    found, printed, floor = case["methods"], case["printed"], case["floor"]
    none = [NONE] * len(DIVERGENCES)
    rows = [
        ["AP1 eps_mean, paper", *map(_shown, printed["ap1"]), _shown(printed["kl_ap1"]), *none[1:]],
        ["AP1 eps_mean", *map(number, found["ap1"]["eps_mean"]), number(found["ap1"]["kl"]), *none[1:]],
    ]
    rows.append(
        ["AP2 eps_mean, paper", *map(_shown, printed["ap2"]), *(_shown(printed[k]) for k in DIVERGENCES[:2]), NONE]
    )
    for name, family in FAMILIES.items():
        divergences = [number(found[name][figure]) for figure in DIVERGENCES]
        rows.append([f"AP2 eps_mean, {family}", *map(number, found[name]["eps_mean"]), *divergences])
    rows.append(["floor", *map(number, floor["eps_mean"]), *[number(floor["kl"])] * len(none)])
    rows.append(["AP2 eps_std, paper", *map(_shown, printed["std"]), *none])
    rows += [
        [f"AP2 eps_std, {family}", *(number(x, 3) for x in found[name]["eps_std"]), *none]
        for name, family in FAMILIES.items()
    ]
    return table(["", *columns, "KL", "KL'", "KL race"], rows)


def _shown(x: float | None) -> str:
    """Format a number as the paper prints it."""
    return NONE if x is None else f"{x:.2f}" if x >= 0.01 else f"{x:.1e}".replace("e-0", "e-")


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw `eps_mean` and `eps_std` against the layer, a column of two panels for each case."""
    return draw(out, name, (2.25 * len(data["cases"]), 5.2), lambda figure: _plot(figure, data))


_OURS: dict[str, dict[str, Any]] = {
    "ap1": {**LINES["AP1"], "linestyle": "-"},
    "ap2": {**LINES["AP2 (default)"], "linewidth": 1.8, "zorder": 2.5},
    "ap2-logistic": {"color": "#2a9d5c", "linestyle": (0, (1, 1))},
    "ap2-fitted": {"color": "#e08e0b", "linestyle": "-."},
}
_PRINTED: dict[str, dict[str, Any]] = {
    "ap1": {"marker": "o", "color": "#c1272d"},
    "ap2": {"marker": "D", "color": "#1f4e9c"},
}


def _plot(figure: "Figure", data: dict[str, Any]) -> None:
    panels = figure.subplots(2, len(data["cases"]), sharex=True, sharey="row", squeeze=False)
    for (above, below), case in zip(panels.T, data["cases"].values(), strict=True):
        _means(above, case)
        _deviations(below, case)
        above.set_title(case["title"].replace(", ", ",\n", 1), fontsize=8.5)
        below.set_xticks(range(len(data["columns"])), data["columns"], fontsize=7.5 if len(data["columns"]) < 9 else 5)
    panels[0, 0].set_ylabel("error of the means\neps_mean")
    panels[1, 0].set_ylabel("factor of the deviations\neps_std")
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names))


def _means(axis: "Axes", case: dict[str, Any]) -> None:
    floor = max((x for x in case["floor"]["eps_mean"] if x is not None), default=0.0)
    axis.axhspan(1e-4, floor, color="0.9", zorder=0, label="floor of the draws")
    for name, style in _OURS.items():
        label = "AP1, ours" if name == "ap1" else f"AP2 {FAMILIES[name]}, ours"
        axis.plot(*_points(case["methods"][name]["eps_mean"]), label=label, **style)
    for name, style in _PRINTED.items():
        _dots(axis, case["printed"][name], style, f"{name.upper()}, paper")
    logarithmic(axis, (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3))
    axis.set_ylim(3e-3, 5)


def _deviations(axis: "Axes", case: dict[str, Any]) -> None:
    axis.axhline(1, color="0.5", linewidth=0.8)
    for name in FAMILIES:
        axis.plot(*_points(case["methods"][name]["eps_std"]), **_OURS[name])
    _dots(axis, case["printed"]["std"], _PRINTED["ap2"], None)
    told = [x for name in FAMILIES for x in case["methods"][name]["eps_std"] if x is not None]
    few = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2) if min(told) > 0.4 else (0.01, 0.03, 0.1, 0.3, 1)
    logarithmic(axis, few)


def _dots(axis: "Axes", numbers: Iterable[float | None], style: dict[str, Any], label: str | None) -> None:
    axis.plot(*_points(numbers), linestyle="", markersize=4, markerfacecolor="none", label=label, **style)


def _points(numbers: Iterable[float | None]) -> tuple[list[int], list[float]]:
    """Return the columns that have a number, and the numbers."""
    found = [(i, x) for i, x in enumerate(numbers) if x is not None]
    return [i for i, _ in found], [x for _, x in found]
