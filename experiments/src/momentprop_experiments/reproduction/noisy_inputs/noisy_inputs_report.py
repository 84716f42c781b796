"""The report and figure on images with noisy and missing pixels."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import number
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.reproduction.outcome import table
from momentprop_experiments.reproduction.posterior_scores import KEPT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INTRODUCTION = (
    "Test images get noisy or missing pixels, and each method gives the class of the image. A method knows a mean and "
    "a variance of every pixel. AP1 takes the means alone. AP2 and Monte Carlo treat the pixels as independent, and do "
    "not use that natural images are likelier than others."
)
_NOTES = """\
* 'Noise' is followed by its variance; images are normalized to variance 1 in each channel. The method knows the noisy
  value and this variance. 'Uneven' noise has a variance of its own for each pixel, with a uniform logarithm.
* 'Missing' pixels are known as the mean and the variance of that pixel over training images. The missing block is a
  square of half the image's side.
* 'Prior' means that a method combines the noisy value with the moments of that pixel over training images.
* NLL is the negative log-likelihood of the true class, in nats. ECE is the expected calibration error, with 15 bins.
  'Best 80 %' is the accuracy if the least confident fifth of the images is rejected.
* ± is one standard error. All methods see the same images, so differences are more certain than ± suggests."""
_GAP = "#e8a0a0"  # missing pixels are light red, a colour that no digit has
_FIFTH = 15  # the position of the share 0.8 in `KEPT`
assert KEPT[_FIFTH] == 0.8


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    fitted = f"Calibrations are fitted to {data['fitted_to']} training images and {data['samples']} draws."
    parts = [f"# {title}", f"{_INTRODUCTION} {fitted}", _NOTES]
    for network in data["networks"].values():
        clean = network["clean"]
        parts += [
            f"**{network['title']}, {network['test_images']:,} test images** (AP1 on clean images: accuracy "
            f"{_accuracy(clean)}, NLL {number(clean['nll'], 3)}, ECE {number(clean['ece'])})",
            table(("images", "method", "accuracy", "NLL", "ECE", "best 80 %"), _rows(network["corruptions"])),
            discussion(network),
            "The gain over AP1 in NLL, on the same images; a gain of more than two standard errors is bold:",
            _gains(network["corruptions"]),
        ]
    return "\n\n".join(parts)


def _rows(corruptions: dict[str, Any]) -> list[Sequence[str]]:
    return [
        [
            corruption if method == "AP1" else "",
            method,
            _accuracy(each),
            f"{number(each['nll'], 3)} ± {number(each['nll_error'], 1)}",
            number(each["ece"]),
            f"{each['kept'][_FIFTH]:.1%}",
        ]
        for corruption, methods in corruptions.items()
        for method, each in methods.items()
    ]


def _accuracy(each: dict[str, Any]) -> str:
    return f"{100 * each['accuracy']:.1f} ± {100 * each['accuracy_error']:.1f} %"


def discussion(network: dict[str, Any]) -> str:
    """Say how often a method is clearly better or worse than another."""
    cases = list(network["corruptions"].values())

    def count(holds: Callable[[dict[str, Any]], bool]) -> int:
        return sum(map(holds, cases))

    def against_ap1(method: str) -> str:
        better = count(lambda found: _sureness(found[method]) > 2)
        worse = count(lambda found: _sureness(found[method]) < -2)
        words = f"{method.replace(', ', ' with ')} draws" if method in _DRAWS else method
        return f"{words} is better in {better} and worse in {worse}"

    def no_worse(method: str) -> str:
        wins = (sum(found[method]["nll"] <= found[draws]["nll"] for found in cases) for draws in _DRAWS)
        return f"{method} in {', '.join(map(str, wins))}"

    accurate = count(lambda found: found["AP1"]["accuracy"] > _least(found["AP2"]))
    return (
        "A difference in NLL counts here if it exceeds two standard errors. Compared with AP1, of "
        f"{len(cases)} kinds of images, {'; '.join(map(against_ap1, ('AP2', 'calibrated AP2', _DRAWS[-1])))}. Where "
        "even many draws are worse than AP1, the average over independent pixels is likely to be worse than the answer "
        "for their means, whatever computes it. AP1 is more accurate than AP2 by more than two standard errors in "
        f"{accurate}. The mean NLL is no worse than that of 8, 32 and 128 draws for "
        f"{', and for '.join(map(no_worse, ('AP2', 'calibrated AP2')))} kinds of images."
    )


_DRAWS = tuple(f"Monte Carlo, {draws}" for draws in (8, 32, 128))


def _gains(corruptions: dict[str, Any]) -> str:
    """Return the table of the gains in likelihood over AP1, on the same images."""
    methods = ("AP2", "calibrated AP2", *_DRAWS)
    rows = [[corruption, *(_gain(found[method]) for method in methods)] for corruption, found in corruptions.items()]
    return table(("images", *methods), rows)


def _gain(each: dict[str, Any]) -> str:
    told = f"{each['nll_gain']:+.2f} ± {number(each['nll_gain_error'], 1)}"
    return f"**{told}**" if _sureness(each) > 2 else told


def _sureness(each: dict[str, Any]) -> float:
    """Return the gain in likelihood over AP1, in standard errors."""
    return float(each["nll_gain"] / each["nll_gain_error"])


def _least(each: dict[str, Any]) -> float:
    """Return the accuracy above which another one is clearly higher."""
    return float(each["accuracy"] + 2 * each["accuracy_error"])


def shown(corruptions: Iterable[str]) -> list[str]:
    """Return the corruptions of the figure: the strongest noise, and one of each other kind."""
    strongest = [each for each in corruptions if each.startswith("noise")][-1]
    return [strongest, "uneven noise", "missing 50 %", "missing block"]


_METHODS: dict[str, dict[str, Any]] = {
    "AP1": LINES["AP1"],
    "AP2": {**LINES["AP2 (default)"], "linewidth": 1.8},
    "calibrated AP2": {"color": "#2a9d5c", "linestyle": "-."},
    "Monte Carlo, 128": LINES["sampling"],
}


def draw_with_pictures(out: Path, name: str, data: dict[str, Any], pictures: dict[str, Any]) -> list[Path]:
    """Draw what a network sees for each data set, and rejection and likelihood for each network."""
    groups: dict[str, list[str]] = {}
    for network, found in data["networks"].items():
        groups.setdefault(found["data"], []).append(network)
    heights = [1.5 + 3.1 * len(names) for names in groups.values()]

    def bands(figure: "Figure") -> None:
        parts = figure.subfigures(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
        for part, names in zip(parts, groups.values(), strict=True):
            panels = _band(part, {each: data["networks"][each] for each in names}, pictures[names[0]])
        lines, labels = panels[1, 0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=len(labels))

    return draw(out, name, (10.4, sum(heights) + 0.3), bands)


def _band(part: Any, networks: dict[str, Any], pictures: dict[str, Any]) -> Any:
    """Draw the images on top and, for each network below, a row of curves and a row of bars."""
    chosen = shown(next(iter(networks.values()))["corruptions"])
    panels = part.subplots(1 + 2 * len(networks), len(chosen), height_ratios=(1.1, *(1.4, 1) * len(networks)))
    for axis, corruption in zip(panels[0], chosen, strict=True):
        _picture(axis, pictures[corruption], corruption)
    for network, curves, bars in zip(networks.values(), panels[1::2], panels[2::2], strict=True):
        for i, corruption in enumerate(chosen):
            _curves(curves[i], network["corruptions"][corruption])
            _bars(bars[i], network["corruptions"][corruption])
        _share((curves, bars))
        curves[0].set_title(network["title"], loc="left", fontweight="bold")
        curves[0].set(ylabel="accuracy (%)", ylim=(0, 102), xlim=(102, 0))
        bars[0].invert_yaxis()
    return panels


def _share(rows: Any) -> None:
    """Give all panels of a row the axes of its first one."""
    for first, *others in rows:
        for axis in others:
            axis.sharex(first)
            axis.sharey(first)
            axis.tick_params(labelleft=False)


def _picture(axis: "Axes", picture: Any, title: str) -> None:
    import numpy
    from matplotlib.colors import to_rgb

    grey = picture.shape[-1] == 1
    drawn = picture.squeeze(-1) if grey else numpy.where(numpy.isnan(picture), to_rgb(_GAP), picture)
    axis.imshow(drawn, cmap=_gaps(), vmin=0, vmax=1)
    axis.set_title(title)
    axis.axis("off")


def _gaps() -> Any:
    """Return a grey colour map with another colour for missing pixels."""
    import matplotlib

    return matplotlib.colormaps["gray"].with_extremes(bad=_GAP)


def _curves(axis: "Axes", methods: dict[str, Any]) -> None:
    for name, style in _METHODS.items():
        axis.plot([100 * x for x in KEPT], [100 * x for x in methods[name]["kept"]], label=name, **style)
    axis.set_xlabel("images kept, surest first (%)")


def _bars(axis: "Axes", methods: dict[str, Any]) -> None:
    names = list(_METHODS)
    axis.barh(names, [methods[name]["nll"] for name in names], color=[_METHODS[name]["color"] for name in names])
    axis.set_xlabel("NLL (nats), less is better")
