"""The report and figure on regression with noisy inputs; the sentences follow from the numbers."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import NONE
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.reproduction.by_seed import ON_INTERVALS, BySeed, counted
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DATA = {
    "diabetes": "diabetes (442 patients, 10 inputs, scikit-learn)",
    "generated": "generated (1,500 points, 4 inputs, noise that depends on the input)",
}
_FIGURES = {"nll": "NLL (less is better)", "coverage_90": "coverage of 90 % intervals"}
_WANTED = 0.9


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [f"# {title}", _setting(data), _notes(data), "**What the numbers say**", _CASES, "\n".join(_said(data))]
    for name, found in data["figures"].items():
        for method, levels in found.items():
            parts += [f"**{_DATA[name]}, trained by {data['trained_by'][method]}**", _table(levels)]
    return "\n\n".join(parts)


_CASES = "A case is a data set, a way of training and a level of noise."


def _setting(data: dict[str, Any]) -> str:
    several = data["seeds"] > 1
    return (
        "The tables compare predictions for noisy inputs: their likelihood, their error, and the share of targets that "
        f"their intervals hold. A network with two hidden layers of {data['hidden']} rectifiers and dropout "
        f"{data['dropout']:g} predicts a mean and a variance. It is trained on clean inputs for {data['epochs']} "
        "epochs. Test inputs get noise, and a method knows its variance. All methods see the same inputs; numbers are "
        f"means over {data['seeds']} split{'s' * several} and initial point{'s' * several}. {ON_INTERVALS}"
    )


def _notes(data: dict[str, Any]) -> str:
    return f"""\
* 'Noise' is the variance of the noise, where an input has variance 1.
* NLL is the negative log-likelihood of the standardized target under a normal distribution. For Monte Carlo it has the
  moments of draws of the input noise and of dropout; 'mixture' is the NLL of the mixture that these draws predict. RMSE
  is the root of the mean squared error.
* 50, 90 and 99 % are the shares of targets in intervals of that level. No method need have the right coverage: all
  treat the inputs that can have become the observed one as equally likely, and do not use which are likelier in the
  data.
* Each network and level of noise has its own calibration, fitted to {data["samples"]} draws for {data["inputs"]}
  training inputs."""


def _said(data: dict[str, Any]) -> Iterator[str]:
    """Say how often and by how much one method beats another, and how far off the intervals are."""
    cases = [methods for found in data["figures"].values() for levels in found.values() for methods in levels.values()]
    yield f"- Does AP2 have a lower NLL than AP1? {_capital(_counted(cases, 'AP2', 'AP1'))}."
    for method in ("AP2", "calibrated AP2"):
        yield f"- Does {method} have a lower NLL than Monte Carlo {' '.join(_against(cases, method, data['counts']))}"
    draws = data["counts"][-1]
    most = f"Monte Carlo, {draws}"
    mixed = counted(_lower(case[most]["nll_of_mixture"], case["calibrated AP2"]["nll"]) for case in cases)
    yield (
        f"- Does the mixture of {draws} draws, which need not be normal, have a lower NLL than calibrated AP2? "
        f"{_capital(mixed)}."
    )
    for name, found in data["figures"].items():
        yield f"- {name}, without noise: {_trained(found)}"
    ranges = []
    for method in ("AP1", "AP2", "calibrated AP2", most):
        shares = [100 * case[method]["coverage_90"]["mean"] for case in cases]
        ranges.append(f"{method}: {min(shares):.0f} to {max(shares):.0f} %")
    yield f"- Intervals of 90 % hold these shares of the targets, from the lowest to the highest: {'; '.join(ranges)}."


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _trained(found: dict[str, Any]) -> str:
    """Say how training by AP2 changes the coverage of AP2's intervals, without noise of the inputs."""
    by_ap2, by_draws = (
        next(iter(found[method].values()))["AP2"]["coverage_90"]["each"] for method in ("ap2", "sample")
    )
    change = BySeed.of([a - b for a, b in zip(by_ap2, by_draws, strict=True)])
    return (
        "do AP2's intervals of 90 % hold more targets after training by AP2 than after sampled dropout? "
        f"{_capital(change.verdict)} ({change.points} points)."
    )


def _against(cases: Sequence[dict[str, Any]], method: str, counts: Sequence[int]) -> Iterator[str]:
    """Say, for each number of draws, how often a method has the lower NLL, and the mean difference."""
    for count in counts:
        other = f"Monte Carlo, {count}"
        differences = [case[method]["nll"]["mean"] - case[other]["nll"]["mean"] for case in cases]
        told = _capital(_counted(cases, method, other))
        start = "with" if count == counts[0] else "Than with"
        yield f"{start} {count} draws? {told}; the mean difference is {statistics.fmean(differences):+.3f}."


def _counted(cases: Sequence[dict[str, Any]], one: str, other: str) -> str:
    return counted(_lower(case[one]["nll"], case[other]["nll"]) for case in cases)


def _lower(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Say whether one figure is lower than another, by the differences of the same seeds."""
    return BySeed.of([b - a for a, b in zip(one["each"], other["each"], strict=True)]).verdict


_SHARES = ("50", "90", "99")
_HEAD = ["noise", "method", "NLL", "mixture", "RMSE", *(f"{share} %" for share in _SHARES), "mean deviation"]


def _table(levels: dict[str, Any]) -> str:
    rows = []
    for variance, methods in levels.items():
        for name, found in methods.items():
            shares = [f"{100 * found[f'coverage_{share}']['mean']:.1f}" for share in _SHARES]
            figures = [_figure(found.get(key)) for key in ("nll", "nll_of_mixture", "rmse")]
            rows.append([variance, name, *figures, *shares, f"{found['deviation']['mean']:.3f}"])
    return table(_HEAD, rows)


def _figure(found: dict[str, Any] | None) -> str:
    if found is None:
        return NONE
    return BySeed.of(found["each"]).text(digits=3, sign="")


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw NLL and coverage against the noise, a column of panels for each data set and training."""
    shown = [(name, method, levels) for name, found in data["figures"].items() for method, levels in found.items()]
    return draw(out, name, (2.7 * len(shown) + 0.6, 5.6), lambda figure: _plot(figure, data, shown))


def _styles(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    few, many = (f"Monte Carlo, {data['counts'][i]}" for i in (0, -1))
    return {
        "AP1": {**LINES["AP1"], "marker": "o"},
        few: {"color": "0.6", "linestyle": (0, (1, 1)), "marker": "v"},
        many: {"color": "0.3", "marker": "^"},
        "AP2": {**LINES["AP2 (default)"], "marker": "D"},
        "calibrated AP2": {"color": "#2a9d5c", "linestyle": "-.", "linewidth": 2.0, "marker": "s"},
    }


def _plot(figure: "Figure", data: dict[str, Any], shown: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
    panels = figure.subplots(len(_FIGURES), len(shown), sharex=True, sharey="row", squeeze=False)
    for column, (name, trained_by, levels) in zip(panels.T, shown, strict=True):
        for axis, key in zip(column, _FIGURES, strict=True):
            for method, style in _styles(data).items():
                figures = [methods[method][key]["mean"] for methods in levels.values()]
                axis.plot(list(levels), figures, label=method, markersize=4, **style)
        column[1].axhline(_WANTED, color="black", linewidth=0.8, linestyle=(0, (1, 1)))
        column[0].set_title(f"{name}, trained by\n{data['trained_by'][trained_by]}")
        column[1].set_xlabel("variance of the input noise")
    panels[0, 0].set_ylim(*_range(levels for _, _, levels in shown))
    panels[1, 0].annotate("wanted", (0, _WANTED), xytext=(0, 2), textcoords="offset points", fontsize=7)
    for axis, label in zip(panels[:, 0], _FIGURES.values(), strict=True):
        axis.set_ylabel(label)
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names))


def _range(shown: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """Return the range of the NLL of all methods except AP1, which leaves the panel."""
    drawn = [
        found["nll"]["mean"]
        for levels in shown
        for methods in levels.values()
        for method, found in methods.items()
        if method != "AP1"
    ]
    return min(drawn) - 0.1, max(drawn) + 0.3
