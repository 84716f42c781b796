"""The command with all its sub-commands: the library's, and those that other packages add.

A package adds commands with entry points in the group `momentprop.commands`. An entry point has the name of its command
and refers to a function `register(app)`, like those of the modules in this folder.
"""

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import torch
import typer
from typer import TyperException

from momentprop.cli import check, data, kernels
from momentprop.errors import UserError

GROUP = "momentprop.commands"
"""The group of entry points that add commands."""

EXPERIMENTS = ("demo", "paper", "train")
"""The commands of the package `momentprop_experiments`."""

_NOT_INSTALLED = (
    "`momentprop {name}` belongs to the experiments, which are not installed: clone the repository and run "
    "`make install`, or `pip install . ./experiments` inside the clone"
)


def application() -> typer.Typer:
    """Make the command with all installed sub-commands."""
    app = typer.Typer(
        name="momentprop",
        help="Propagate means and variances through PyTorch networks.",
        rich_markup_mode=None,  # plain help can be piped, searched and copied
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_start)
    check.register(app)
    data.register(app)
    kernels.register(app)
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
    """Add a hidden command that takes any arguments and only says why it does not work."""

    def refuse() -> None:
        raise UserError(message)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, hidden=True, context_settings=anything)(refuse)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; a `UserError` is for `momentprop.cli.main` to print."""
    command = typer.main.get_command(application())
    try:
        status = command.main(arguments, prog_name="momentprop", standalone_mode=False)
    except TyperException as error:  # a malformed command line
        raise UserError(_with_help(error)) from error
    return status if isinstance(status, int) else 0


def _with_help(error: TyperException) -> str:
    """Return one line that says what is wrong and which help to read."""
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
