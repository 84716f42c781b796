"""`momentprop kernels`: builds kernels ahead of time, lists and removes them."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import torch
import typer

from momentprop import built_kernels
from momentprop.errors import UserError


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(kernels)
    group.command(name="build", epilog="Example: momentprop kernels build --device cuda")(build)
    group.command(name="list")(list_)
    group.command(name="clear")(clear)
    app.add_typer(group, name="kernels")


def kernels(context: typer.Context) -> None:
    """Build kernels ahead of time, list and clear them."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def build(
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Build for the CPU or for the GPU.")] = "cpu",
    double: Annotated[bool, typer.Option("--float64", help="Build for float64 too, on the CPU.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many compilers run in parallel. [default: the number of cores]", show_default=False
        ),
    ] = None,
) -> None:
    """Build the kernels of all operations, so that no first call runs without them.

    Kernels that are already built are kept. Kernels for constants other than torch's defaults, such as another slope of
    a leaky ReLU, are built when first used.
    """
    if double and device == "cuda":
        raise UserError("kernels for a GPU are built for float32 only: leave out `--float64`")
    dtypes = (torch.float32, torch.float64) if double else (torch.float32,)
    try:
        with _progress() as progress:
            done = built_kernels.build(dtypes, device, jobs or os.cpu_count() or 1, progress)
    except built_kernels.BuildError as error:
        print(f"momentprop: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    print(f"{_counted(done.built)} built in {done.seconds:.0f} s, {done.found} were there already: {_content()}")
    if done.formulas:
        print(f"{_counted(len(done.formulas))} not built; formulas run instead, for these reasons:")
        width = max(map(len, done.formulas))
        for name, reason in done.formulas.items():
            print(f"  {name:{width}}  {reason}")
    if not done.built + done.found:
        raise typer.Exit(1)


def list_() -> None:
    """Say how many kernels are built, where they are, and how large they are."""
    print(_content())


def clear() -> None:
    """Remove all built kernels; they are built again when they are used."""
    print(f"{_counted(built_kernels.clear())} removed from {built_kernels.folder()}")


def _content() -> str:
    number, size = len(built_kernels.files()), built_kernels.size()
    return f"{_counted(number)}, {size / 1e6:.1f} MB, in {built_kernels.folder()}"


def _counted(number: int) -> str:
    return f"{number} kernel{'' if number == 1 else 's'}"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, and elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("building kernels", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
