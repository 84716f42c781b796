"""Progress bars on standard error: with rich on a terminal, otherwise one plain line."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextlib.contextmanager
def progress(label: str, total: int | None = None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show progress; call the yielded function with each number of received bytes.

    Args:
        label: The task.
        total: The number of bytes, if known.
        done: The number of bytes already there.
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
    """Return a progress bar of rich, or a spinner if the total is unknown; None without rich."""
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
