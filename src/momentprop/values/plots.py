"""A quick look at a result: the density of each unit, or the probability of each class."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#c4500c", "#1f5fb0", "#1c7d4d", "#8a3fa0", "#7a5a14", "#0b7d8c", "#b3225f", "#59616d")
_POINTS = 200  # of a curve


def figure(value: Any, dim: int | None, names: Sequence[str] | None, items: int, ap1: Any) -> "Figure":
    """Draw the first items of a value: class probabilities along `dim`, or without it a density of each unit.

    Lines and marks are at `ap1`, the output of the plain network, or else at the mean.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('figures need matplotlib: run `pip install "momentprop[plots]"`') from error
    line = None if ap1 is None else getattr(ap1, "loc", ap1)
    panels = _densities(value, items, line) if dim is None else _classes(value, dim, items, line)
    drawn = Figure(figsize=(4.2 * len(panels), 3), layout="constrained")
    for k, (axes, panel) in enumerate(zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)):
        labels = list(names) if names is not None else [str(unit) for unit in range(len(panel[0]))]
        if len(labels) < len(panel[0]):
            raise ValueError(f"there are {len(labels)} names for {len(panel[0])} units: give one name for each unit")
        (_draw_density if dim is None else _draw_classes)(axes, panel, labels)
        axes.set_title(f"item {k}" if len(panels) > 1 else "", fontsize=10)
    return drawn


def _rows(tensor: Any, items: int) -> Any:
    """Return some items of a tensor, as (items, units)."""
    tensor = tensor.detach().double().cpu()
    return (tensor.flatten(1) if tensor.ndim > 1 else tensor.reshape(1, -1))[:items]


def _densities(value: Any, items: int, line: Any) -> list[Any]:
    """Return, for the first units of each item, the means, deviations, positions of the lines, and draws or None."""
    spread = getattr(value, "stddev", torch.zeros_like(value.loc))
    parts = [value.loc, spread, value.loc if line is None else line]
    means, spread, lines = (_rows(part, items)[:, : len(_COLOURS)] for part in parts)
    draws = getattr(value, "draws", None)
    drawn = torch.stack([_rows(draw, items)[:, : len(_COLOURS)] for draw in draws], -1) if draws is not None else None
    unknown = [None] * means.shape[1]
    return [(means[k], spread[k], lines[k], unknown if drawn is None else drawn[k]) for k in range(len(means))]


def _classes(value: Any, dim: int, items: int, line: Any) -> list[Any]:
    """Return the class probabilities of each item, and those of the mean or plain scores if known."""
    found = _by_classes(value.probabilities(dim), dim, items)
    scores = getattr(value, "scores", value)
    if line is None and scores is None:
        return [(probabilities, None) for probabilities in found]
    marks = torch.softmax(scores.loc if line is None else line, dim)
    return list(zip(found, _by_classes(marks, dim, items), strict=True))


def _by_classes(tensor: Any, dim: int, items: int) -> Any:
    tensor = tensor.movedim(dim, -1)
    return _rows(tensor.reshape(-1, tensor.shape[-1]), items)


def _draw_density(axes: "Axes", panel: Any, names: Sequence[str]) -> None:
    """Draw normal densities or histograms, and lines."""
    for mean, deviation, line, draws, colour, name in zip(*panel, _COLOURS, names, strict=False):
        axes.axvline(float(line), color=colour, linewidth=1, linestyle="--")
        if draws is not None:
            axes.hist(draws.tolist(), bins=40, density=True, color=colour, alpha=0.4, label=name)
        elif deviation > 0:
            z = torch.linspace(-4, 4, _POINTS, dtype=torch.float64)
            density = torch.exp(-0.5 * z * z) / (float(deviation) * math.sqrt(2 * math.pi))
            axes.plot((mean + deviation * z).tolist(), density.tolist(), color=colour, label=name)
    axes.set_xlabel("output")
    axes.set_ylabel("density")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def _draw_classes(axes: "Axes", panel: Any, names: Sequence[str]) -> None:
    """Draw class probabilities as bars, and those without noise as marks."""
    probabilities, marks = panel
    axes.bar(range(len(probabilities)), probabilities.tolist(), color=_COLOURS[1], label="with the noise")
    if marks is not None:
        axes.plot(range(len(marks)), marks.tolist(), "_", color=_COLOURS[0], markersize=12, label="without")
    axes.set_xticks(range(len(probabilities)), names[: len(probabilities)])
    axes.set_ylim(0, 1)
    axes.set_ylabel("probability")
    axes.legend(frameon=False, fontsize=8)
