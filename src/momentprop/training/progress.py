"""Live progress: a bar on a terminal, and one plain line per epoch elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

_REFRESH = 0.5  # seconds between two updates of the loss, each of which waits for the device


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Shows the progress of epochs; silent if not wanted, as on all processes but the first."""

    def __init__(self, epochs: int, wanted: bool = True) -> None:
        self.epochs, self.wanted = epochs, wanted
        self.bar = _bar() if wanted and sys.stderr.isatty() else None
        self.task: Any = None
        self.looked = 0.0

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self, epoch: int, steps: int, done: int) -> None:
        """Start an epoch, counted from 1."""
        if self.bar is not None:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.task = self.bar.add_task(f"epoch {epoch} of {self.epochs}", total=steps, completed=done, figures="")

    def step(self, figures: Callable[[], Mapping[str, float]]) -> None:
        """Count a step; compute the figures at most twice a second."""
        if self.bar is None:
            return
        self.bar.advance(self.task)
        if time.monotonic() - self.looked > _REFRESH:
            self.bar.update(self.task, figures=line(figures()))
            self.looked = time.monotonic()

    def end(self, row: Mapping[str, Any]) -> None:
        """Print the figures of a finished epoch."""
        self.say(f"epoch {row['epoch']} of {self.epochs}: {line(row)}")

    def say(self, text: str) -> None:
        """Print a line."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        elif self.wanted:
            print(text, file=sys.stderr, flush=True)


class Clock:
    """Counts seconds, starting at a given number."""

    def __init__(self, seconds: float) -> None:
        self.set(seconds)

    def set(self, seconds: float) -> None:
        """Restart the count at this number."""
        self.before, self.started = seconds, time.perf_counter()

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        return self.before + time.perf_counter() - self.started


def line(figures: Mapping[str, Any]) -> str:
    """Format figures for people.

    >>> line({"epoch": 1, "train_loss": 0.5, "train_accuracy": 0.871, "images_per_second": 3204.2})
    'train loss 0.5000, train accuracy 87.10 %, 3204 images/s'
    """
    shown = []
    for name, figure in figures.items():
        words = name.replace("_", " ")
        if name.endswith("accuracy"):
            shown.append(f"{words} {100 * figure:.2f} %")
        elif name == "images_per_second":
            shown.append(f"{figure:.0f} images/s")
        elif name not in ("epoch", "learning_rate", "seconds"):
            shown.append(f"{words} {figure:.4f}")
    return ", ".join(shown)


def _bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, TextColumn("{task.fields[figures]}"), console=Console(stderr=True), transient=True)
