"""Draw the metrics of a run against its epochs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from momentprop.training.log import Row
from momentprop_experiments import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curves(out: Path, history: Sequence[Row], names: Sequence[str]) -> list[Path]:
    """Draw each metric against the epochs, for training and validation, as `curves.png` and `curves.svg`."""

    def plot(figure: "Figure") -> None:
        epochs = [row["epoch"] for row in history]
        for i, name in enumerate(names):
            axes = figure.add_subplot(1, len(names), i + 1)
            for part, style in (("train", drawing.LINES["AP1"]), ("validation", drawing.LINES["AP2 (default)"])):
                if f"{part}_{name}" in history[0]:
                    drawn = [row[f"{part}_{name}"] for row in history]
                    axes.plot(epochs, drawn, label=part, marker="." if len(epochs) < 40 else None, **style)
            axes.set(xlabel="epoch", ylabel=name.replace("_", " "))
            axes.legend()

    return drawing.draw(out, "curves", (3.4 * len(names), 2.8), plot)
