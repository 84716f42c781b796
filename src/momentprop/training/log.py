"""The log of a run: a table of its epochs, and TensorBoard events."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from momentprop.errors import UserError
from momentprop.files import write_file

Row = dict[str, Any]
"""The figures of an epoch."""


def write_csv(path: Path, history: Sequence[Row]) -> None:
    """Write one line per epoch. Each call rewrites the whole file, so a killed run leaves no duplicate line."""
    if not history:
        return
    text = io.StringIO(newline="")
    names = dict.fromkeys(name for row in history for name in row)  # a resumed run may have more figures
    table = csv.DictWriter(text, list(names), lineterminator="\n")
    table.writeheader()
    table.writerows(history)
    write_file(path, text.getvalue().encode())


class TensorBoard:
    """Writes events for TensorBoard, if wanted."""

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
