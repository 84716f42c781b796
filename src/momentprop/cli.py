"""The command `momentprop`: the paper's examples, each as a table and a figure."""

import argparse
import difflib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from momentprop.experiments import figures
from momentprop.experiments.paper import EXPERIMENTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with arguments, by default those it was called with; return its exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    try:
        names = _names(given.name)
        figures.require()
        for name in names:
            _run(name, given.out / "paper", given.quick)
    except (_UnknownNameError, ImportError, OSError) as error:
        print(f"momentprop: {error}", file=sys.stderr)
        return 2
    return 0


class _UnknownNameError(ValueError):
    pass


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="momentprop", description="Moment propagation: the paper's examples.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    width = max(map(len, EXPERIMENTS))
    listed = "\n".join(f"  {name:{width}}  {experiment.TITLE}" for name, experiment in EXPERIMENTS.items())
    paper = commands.add_parser(
        "paper",
        help="reproduce a table or a figure of the paper",
        description="Reproduce a table or a figure of the paper: print the table, and write NAME.json (the numbers),\n"
        "NAME.md (the table), NAME.png and NAME.svg (the figure) into DIR/paper.",
        epilog=f"names:\n{listed}\n  {'all':{width}}  all of them, one after the other",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    paper.add_argument("name", metavar="NAME", help="which one (see below), or all")
    paper.add_argument("--out", metavar="DIR", type=Path, default=Path("results"), help="default: results")
    paper.add_argument("--quick", action="store_true", help="few draws, to see that it works")
    return parser


def _names(name: str) -> list[str]:
    if name == "all":
        return list(EXPERIMENTS)
    name = name.replace("_", "-")
    if name in EXPERIMENTS:
        return [name]
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise _UnknownNameError(f"the paper has no {name!r}: {hint}choose {', '.join(EXPERIMENTS)} or all")


def _run(name: str, out: Path, quick: bool) -> None:
    started = time.perf_counter()
    result = EXPERIMENTS[name].run(out, quick)
    files = result.save(out, name)
    print(result.markdown)
    print(f"\nWritten to {', '.join(map(str, files))} ({time.perf_counter() - started:.1f} s)\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
