"""What a run leaves for people: a table of its epochs, curves, and TensorBoard events."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.errors import UserError
from momentprop.experiments import figures
from momentprop.training.checkpoint import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
"""The figures of an epoch."""


def write_csv(path: Path, history: Sequence[Row]) -> None:
    """Write one line for each epoch. The file is written anew every time, so that no kill can leave a line twice."""
    if not history:
        return
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(history[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(history)
    write_file(path, text.getvalue().encode())


class TensorBoard:
    """Events for TensorBoard, if they are wanted."""

    def __init__(self, folder: Path, wanted: bool, epoch: int) -> None:
        self.writer: Any = None
        if wanted:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise UserError("TensorBoard logs need tensorboard: run `pip install tensorboard`") from error
            self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """Write the figures of an epoch."""
        if self.writer is not None:
            for name, figure in row.items():
                self.writer.add_scalar(name.replace("_", "/", 1), figure, row["epoch"])
            self.writer.flush()


def draw_curves(out: Path, history: Sequence[Row], names: Sequence[str]) -> list[Path]:
    """Draw each figure of the objective against the epochs, for training and validation, as `curves.png` and `.svg`."""

    def plot(figure: "Figure") -> None:
        epochs = [row["epoch"] for row in history]
        for i, name in enumerate(names):
            axes = figure.add_subplot(1, len(names), i + 1)
            for part, style in (("train", figures.LINES["AP1"]), ("validation", figures.LINES["AP2 (default)"])):
                if f"{part}_{name}" in history[0]:
                    drawn = [row[f"{part}_{name}"] for row in history]
                    axes.plot(epochs, drawn, label=part, marker="." if len(epochs) < 40 else None, **style)
            axes.set(xlabel="epoch", ylabel=name.replace("_", " "))
            axes.legend()

    return figures.draw(out, "curves", (3.4 * len(names), 2.8), plot)
