"""Progress bars on the standard error: with rich on a terminal, else one plain line."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextlib.contextmanager
def progress(label: str, total: int | None = None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show that something is going on; the function that it gives is called with each number of bytes that came.

    Args:
        label: What is going on.
        total: How many bytes there will be, if that is known.
        done: How many of them are there already.
    """
    bar = _bar(total is not None) if sys.stderr.isatty() else None
    if bar is None:
        print(label, file=sys.stderr, flush=True)
        yield lambda count: None
        return
    with bar:
        task = bar.add_task(label, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


def _bar(measured: bool) -> "Progress | None":
    """Return a bar of rich's, or a mere sign of life for what cannot be measured; None without rich."""
    try:
        from rich import progress as rich
        from rich.console import Console
    except ImportError:
        return None
    columns: tuple[rich.ProgressColumn, ...] = (rich.TextColumn("{task.description}"),)
    if measured:
        columns += (rich.BarColumn(), rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    else:
        columns += (rich.SpinnerColumn(), rich.TimeElapsedColumn())
    return rich.Progress(*columns, console=Console(stderr=True))
