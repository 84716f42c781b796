"""The command with all of its sub-commands: those of the library, and those that other packages add.

A package adds commands by entry points in the group `momentprop.commands`. The name of an entry point is that of the
command, and its object a function `register(app)`, as the modules of this folder have.
"""

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import torch
import typer
from typer import TyperException

from momentprop.cli import check, data
from momentprop.errors import UserError

GROUP = "momentprop.commands"
"""The group of the entry points."""

EXPERIMENTS = ("demo", "paper", "train")
"""The commands of the package `momentprop_experiments`."""

_NOT_INSTALLED = (
    "`momentprop {name}` is a command of the experiments, which are not installed: clone the repository and run "
    "`make`, or `pip install ./experiments` inside the clone"
)


def application() -> typer.Typer:
    """Make the command with every sub-command that is installed."""
    app = typer.Typer(
        name="momentprop",
        help="Propagate means and variances through PyTorch networks.",
        rich_markup_mode=None,  # plain help: it can be piped, searched and copied
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_start)
    check.register(app)
    data.register(app)
    installed = metadata.entry_points(group=GROUP)
    for entry in installed:
        try:
            register = entry.load()
        except ImportError as error:
            _refuse(app, entry.name, f"the command {entry.name!r} cannot be loaded: {error}")
        else:
            register(app)
    for name in EXPERIMENTS:
        if name not in installed.names:
            _refuse(app, name, _NOT_INSTALLED.format(name=name))
    return app


def _refuse(app: typer.Typer, name: str, message: str) -> None:
    """Add a command that is not listed, takes any arguments, and only says why it does not work."""

    def refuse() -> None:
        raise UserError(message)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, hidden=True, context_settings=anything)(refuse)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status, or raise what `momentprop.cli.main` makes one line of."""
    command = typer.main.get_command(application())
    try:
        status = command.main(arguments, prog_name="momentprop", standalone_mode=False)
    except TyperException as error:  # a command line that cannot be understood
        raise UserError(_with_help(error)) from error
    return status if isinstance(status, int) else 0


def _with_help(error: TyperException) -> str:
    """Return the one line that says what is wrong, and which help to read."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "momentprop"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; see `{path} --help`"


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"momentprop {_version()} (torch {torch.__version__}, Python {platform.python_version()})")
        raise typer.Exit


def _version() -> str:
    try:
        return metadata.version("momentprop")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
