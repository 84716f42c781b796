"""The command with all of its sub-commands."""

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import torch
import typer
from typer import TyperException

from momentprop.cli import check, data, paper, train
from momentprop.errors import UserError

app = typer.Typer(
    name="momentprop",
    help="Propagate means and variances through PyTorch networks.",
    rich_markup_mode=None,  # plain help: it can be piped, searched and copied
    add_completion=False,
    pretty_exceptions_enable=False,
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status, or raise what `momentprop.cli.main` makes one line of."""
    command = typer.main.get_command(app)
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


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


for _module in (check, data, train, paper):
    _module.register(app)
