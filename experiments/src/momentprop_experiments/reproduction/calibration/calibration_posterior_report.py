"""The report and figure on class posteriors of noisy images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import NONE, number, percent
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTES = """\
* The forward passes are the cost of a batch of {timed} images and its class posteriors, in passes of the plain network.
* NLL is the negative log-likelihood of the true class in nats. ECE is the expected calibration error, with 15 bins.
* KL is the divergence from the posterior of the draws that serve as the truth. Their own row has the divergence that
  the exact posterior would show, because these draws are finite.
* 50 %, 90 % and 99 % are levels of intervals for the logits, and the cells say how many of the draws they hold. Monte
  Carlo makes its intervals from the mean and the deviation of its draws. The last column says how many 90 % intervals
  hold the logit of the clean image.
* ± is one standard error. All methods see the same images, so differences are more certain than ± suggests."""


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [
        f"# {title}",
        f"Each of {data['test_images']:,} test images gets noise, drawn once. A method sees the noisy image and the "
        "variance of the noise, and gives the class posterior under such noise on *this* image. It does not know the "
        "clean image, and does not use that natural images are likelier than others. "
        f"{data['draws']:,} draws serve as the truth.",
        _NOTES.format(timed=data["timed_images"]),
    ]
    for case in data["cases"].values():
        parts += [f"**{case['title']}**", table(_HEAD, [_row(*each) for each in case["methods"].items()])]
    return "\n\n".join(parts)


_LEVELS = ("50", "90", "99")
_HEAD = ["method", "forward passes", "accuracy", "NLL", "ECE", "KL", *(f"{x} %" for x in _LEVELS), "clean, 90 %"]


def _row(name: str, found: dict[str, Any]) -> Sequence[str]:
    passes = number(found["forward_passes"], 3) if found["forward_passes"] is not None else NONE
    accuracy = f"{100 * found['accuracy']:.1f} ± {100 * found['accuracy_error']:.1f} %"
    nll = f"{number(found['nll'], 3)} ± {number(found['nll_error'], 1)}"
    held = [percent(found["coverage"].get(level)) for level in _LEVELS]
    clean = percent(found["coverage_of_clean"].get("90"))
    kl = number(found["kl"]) + (f" ± {number(found['kl_error'], 1)}" if "kl_error" in found else "")
    return [name, passes, accuracy, nll, number(found["ece"]), kl, *held, clean]


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw NLL, ECE and KL against the cost, a column of panels for each case."""
    return draw(out, name, (2.9 * len(data["cases"]) + 0.6, 6.4), lambda figure: _plot(figure, data))


_STYLES: dict[str, dict[str, Any]] = {
    "AP1": {"color": LINES["AP1"]["color"], "marker": "o"},
    "AP2": {"color": LINES["AP2 (default)"]["color"], "marker": "D"},
    "calibrated AP2": {"color": "#2a9d5c", "marker": "s"},
}
_FIGURES = {"nll": "NLL", "ece": "ECE", "kl": "KL from the truth"}


def _plot(figure: "Figure", data: dict[str, Any]) -> None:
    panels = figure.subplots(len(_FIGURES), len(data["cases"]), sharex="col", squeeze=False)
    for column, case in zip(panels.T, data["cases"].values(), strict=True):
        for axis, key in zip(column, _FIGURES, strict=True):
            _points(axis, case["methods"], key)
        column[0].set_title(case["title"])
        column[-1].set_yscale("log")
        column[-1].set_xlabel("cost in forward passes")
    for axis, label in zip(panels[:, 0], _FIGURES.values(), strict=True):
        axis.set_ylabel(label)
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names))


def _points(axis: "Axes", methods: dict[str, Any], key: str) -> None:
    drawn = [each for each in methods.values() if each["forward_passes"] is not None and each["coverage"]]
    sampled = [each for name, each in methods.items() if name.startswith("Monte Carlo") and each in drawn]
    axis.plot(
        [each["forward_passes"] for each in sampled],
        [each[key] for each in sampled],
        label="Monte Carlo, 8, 32, 128 draws",
        marker="^",
        markersize=5,
        **LINES["sampling"],
    )
    for name, style in _STYLES.items():
        axis.plot([methods[name]["forward_passes"]], [methods[name][key]], linestyle="", label=name, **style)
    if key != "kl":
        truth = list(methods.values())[-1]
        axis.axhline(truth[key], color="0.3", linewidth=0.8, linestyle=(0, (1, 1)), label="the truth")
    axis.set_xscale("log")
