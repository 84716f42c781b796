"""The report and figure on the accuracy tables at both scales of the noise."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import NONE, number
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SCALES = {"normalized": "normalized inputs", "pixels": "pixels", "none": NONE}

_NOTES = (
    "The paper does not say whether it adds the noise N(0, v) to normalized inputs or to pixels in [0, 1]. Here the "
    "noise is added to each in turn: noise of variance v on pixels has a larger variance after the normalization. "
    "`eps_mean` is the error of the means in deviations, and `eps_std` the factor by which deviations are off; 1 is "
    "right. AP2 takes exact expectations, except in the columns 'Fitted', which take the formulas of the paper's "
    "implementation."
)
_ON_DISTANCE = (
    "The table says how far our errors are from the printed ones: the root mean square of log(ours / printed) over the "
    "layers. The scale that fits better is bold. Our networks, training and draws differ from the paper's, so we do "
    "not expect zeros."
)
_ON_POSTERIORS = (
    "The table has the divergence of the class posterior from that of the draws, in nats: the mean over the images, ± "
    "one standard error, without the part that finite draws add. KL uses the paper's simplified softmax, and KL' its "
    "full one. 'Worth' is the number of draws with the same mean divergence; a dash means that the divergence is less "
    "than two standard errors. 'Largest' is the share of a single image in AP2's divergence: where it is high, the row "
    "says little about the other images."
)

_POSTERIORS = (
    ("AP1", "ap1", "kl", "kl_ap1"),
    ("AP2", "ap2", "kl_race", None),
    ("Fitted, KL", "ap2-fitted", "kl_simplified", "kl_simplified"),
    ("Fitted, KL'", "ap2-fitted", "kl_logistic", "kl_logistic"),
)
"""The columns of the table of posteriors: its heading, the method, its softmax, and the paper's number."""

Row = tuple[dict[str, Any], str, dict[str, Any]]


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [f"# {title}", _NOTES, *(_open(*each) for each in data["missing"].items())]
    for study in data["studies"].values():
        posterior = _rows(study)[0][2]["posterior"]
        about = (
            f"The table compares the errors at the last layer with the printed ones. It takes the first "
            f"{study['images']} test images of {study['data']} and {study['draws']:,} draws; the class posteriors "
            f"below take {posterior['images']:,} images and {posterior['draws']:,} draws. Measured on "
            f"{study['made']['device']} in {study['made']['seconds']:.0f} s."
        )
        parts += [f"**{study['data']}: errors at the last layer**", about, _last(study)]
        parts += [f"**{study['data']}: distance from the paper's numbers**", _ON_DISTANCE, _distances(study)]
        parts += [f"**{study['data']}: class posteriors**", _ON_POSTERIORS, _posteriors(study)]
    return "\n\n".join(parts)


def _open(name: str, data: str) -> str:
    return f"Still open: the cases of the {name} table were not measured, because {data} was not available."


def _rows(study: dict[str, Any]) -> list[Row]:
    """Return each case with a scale and what was found there."""
    return [(case, scale, found) for case in study["cases"].values() for scale, found in case["scales"].items()]


def _first(case: dict[str, Any], scale: str) -> list[str]:
    """Return the first cells of a row, the title once."""
    return [case["title"] if scale != "pixels" else "", _SCALES[scale]]


def _last(study: dict[str, Any]) -> str:
    rows = []
    for case, scale, found in _rows(study):
        ap1, ap2, fitted = (found["methods"][name] for name in ("ap1", "ap2", "ap2-fitted"))
        row = [*_first(case, scale), number(case["printed"]["ap1"][-1]), number(ap1["eps_mean"][-1])]
        for line, figure in (("ap2", "eps_mean"), ("std", "eps_std")):
            row += [number(x[-1]) for x in (case["printed"][line], ap2[figure], fitted[figure])]
        rows.append([*row, number(found["floor"][-1])])
    head = ["case", "noise on", "AP1 eps_mean: paper", "ours", "AP2 eps_mean: paper", "ours", "Fitted"]
    return table([*head, "AP2 eps_std: paper", "ours", "Fitted", "floor of eps_mean"], rows)


_DISTANCES = (
    ("AP1 eps_mean", "ap1", "eps_mean"),
    ("AP2 eps_mean", "ap2", "eps_mean"),
    ("Fitted", "ap2-fitted", "eps_mean"),
    ("AP2 eps_std", "ap2", "eps_std"),
    ("Fitted", "ap2-fitted", "eps_std"),
)


def _distances(study: dict[str, Any]) -> str:
    rows = []
    for case, scale, found in _rows(study):
        others = [each for name, each in case["scales"].items() if name != scale]
        cells = []
        for _, method, figure in _DISTANCES:
            mine = found["methods"][method]["distance"].get(figure)
            theirs = [other["methods"][method]["distance"].get(figure) for other in others]
            best = mine is not None and others and all(x is not None and mine < x for x in theirs)
            cells.append(f"**{number(mine)}**" if best else number(mine))
        rows.append([*_first(case, scale), *cells])
    return table(["case", "noise on", *(heading for heading, _, _ in _DISTANCES)], rows)


def _posteriors(study: dict[str, Any]) -> str:
    head = ["case", "noise on"]
    for heading, _, _, line in _POSTERIORS:
        head += [f"{heading}: paper", "ours"] if line else [heading]
    rows = []
    for case, scale, found in _rows(study):
        told = found["posterior"]["methods"]
        row = _first(case, scale)
        for _, method, kind, line in _POSTERIORS:
            row += [number(case["printed"][line])] if line else []
            row.append(_with_error(told[method][kind], "kl", "error"))
        worth = [_with_error(told[method][kind], "worth", "worth_error") for _, method, kind, _ in _POSTERIORS[:2]]
        largest = told["ap2"]["kl_race"]["largest"]
        rows.append([*row, *worth, NONE if largest is None else f"{largest:.0%}"])
    return table([*head, "worth: AP1", "AP2", "largest"], rows)


def _with_error(found: dict[str, Any], figure: str, error: str) -> str:
    return NONE if found[figure] is None else f"{number(found[figure])} ± {number(found[error], 1)}"


_STYLES: dict[str, dict[str, Any]] = {
    "ap1": {"color": LINES["AP1"]["color"], "marker": "o"},
    "ap2": {"color": LINES["AP2 (default)"]["color"], "marker": "D"},
    "ap2-fitted": {"color": "#e08e0b", "marker": "s"},
}
_LEAST = 1e-7
"""The left end of the divergences in the figure: smaller ones are drawn there."""


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw the divergences of the class posteriors with their errors, a row for each case and scale."""
    studies = list(data["studies"].values())
    height = 1.6 + 0.42 * sum(len(_rows(study)) for study in studies)
    return draw(out, name, (8.8, height), lambda figure: _plot(figure, studies))


def _plot(figure: "Figure", studies: Sequence[dict[str, Any]]) -> None:
    counts = [len(_rows(study)) for study in studies]
    panels = figure.subplots(len(studies), 1, sharex=True, squeeze=False, height_ratios=counts)[:, 0]
    for axis, study in zip(panels, studies, strict=True):
        _panel(axis, study)
    panels[-1].set_xlabel("divergence from the posterior of the draws (nats), ± one standard error")
    lines, names = panels[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names))


def _panel(axis: "Axes", study: dict[str, Any]) -> None:
    rows = _rows(study)
    for method, shift, x, error, printed in _points(rows):
        y = [i + shift for i in range(len(rows))]
        shown = [max(each, _LEAST) for each in x]
        lows = [min(e, each - _LEAST) for e, each in zip(error, shown, strict=True)]
        label = {"ap1": "AP1", "ap2": "AP2", "ap2-fitted": "AP2 Fitted"}[method]
        axis.errorbar(
            shown, y, xerr=[lows, error], linestyle="", markersize=4, capsize=2, label=label, **_STYLES[method]
        )
        if printed:
            style = {**_STYLES[method], "markerfacecolor": "none", "linestyle": "", "markersize": 6}
            axis.plot(printed, y, label=f"{label}, paper", **style)
    axis.set_xscale("log")
    axis.set_xlim(_LEAST / 1.5, 20)
    names = [f"{case['title']}{'' if scale == 'none' else f', {_SCALES[scale]}'}" for case, scale, _ in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=7.5)
    axis.invert_yaxis()
    axis.set_title(study["data"])


def _points(rows: Sequence[Row]) -> Iterator[tuple[str, float, list[float], list[float], list[float]]]:
    """Yield each method with the shift of its marks, our divergences with errors, and the printed ones, if any."""
    for shift, (method, kind, line) in zip(
        (-0.2, 0.0, 0.2),
        (("ap1", "kl", "kl_ap1"), ("ap2", "kl_race", None), ("ap2-fitted", "kl_simplified", "kl_simplified")),
        strict=True,
    ):
        told = [found["posterior"]["methods"][method][kind] for _, _, found in rows]
        printed = [case["printed"][line] for case, _, _ in rows] if line else []
        yield method, shift, [each["kl"] for each in told], [each["error"] for each in told], printed
