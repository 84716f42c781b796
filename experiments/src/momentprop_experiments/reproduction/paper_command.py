"""`momentprop paper`: the paper's examples, each as a table and a figure."""

import difflib
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from momentprop.errors import UserError
from momentprop.training.distributed import as_device
from momentprop_experiments import drawing
from momentprop_experiments.options import Options
from momentprop_experiments.provenance import start
from momentprop_experiments.reproduction.outcome import Outcome
from momentprop_experiments.reproduction.registry import EXPERIMENTS, NEED_DATA, ON_CPU, Reporting


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command(epilog=_listed())(paper)


def paper(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of an experiment (see below), or all.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The results go into DIR/paper.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="Take few draws, only to check that it works.")] = False,
    root: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder of the data sets.")] = None,
    networks: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder of trained networks.")] = None,
    device: Annotated[str, typer.Option(help="The device of the networks: auto, cpu or cuda.")] = "auto",
    runs: Annotated[Path, typer.Option(metavar="DIR", help="The folder of training runs.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(min=1, help="The number of training runs at a time, each in a process.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop training after this time; the same command resumes.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=2, help="For correlation: the number of images; by default as many as suit the device."),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="For dropout and dropout-cause: train only the runs that NAME.json lacks.")
    ] = False,
    stored: Annotated[
        bool, typer.Option("--stored", help="Write the table and the figure again, from the numbers in NAME.json.")
    ] = False,
) -> None:
    """Reproduce a table or a figure of the paper.

    Prints the table, and writes NAME.json (the numbers), NAME.md (the table), NAME.png and NAME.svg (the figure) into
    DIR/paper. Most experiments use the trained networks in `results/networks` of the repository, and test images that
    `momentprop data get` fetches. Experiments that train networks keep their runs; call the command again to resume.
    """
    names = _names(name)
    drawing.require()
    options = Options(quick, root, networks, device, runs, jobs, minutes, images, missing)
    for chosen in names:
        _report(chosen, out / "paper") if stored else _run(chosen, out / "paper", options)


def _listed() -> str:
    """Return the names with their titles, one per line; the backspace keeps typer from joining the lines."""
    width = max(map(len, EXPERIMENTS))
    lines = [f"  {name:{width}}  {experiment.TITLE}" for name, experiment in EXPERIMENTS.items()]
    return "\n".join(["\b", "Names:", *lines, f"  {'all':{width}}  All experiments that need no data set"])


def _names(name: str) -> list[str]:
    if name == "all":
        return [each for each in EXPERIMENTS if each not in NEED_DATA]
    name = name.replace("_", "-")
    if name in EXPERIMENTS:
        return [name]
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"there is no experiment {name!r}: {hint}choose {', '.join(EXPERIMENTS)} or all")


def _run(name: str, out: Path, options: Options) -> None:
    started, made = time.perf_counter(), start()
    result = EXPERIMENTS[name].run(out, options)
    if not options.missing:  # runs kept from other calls record what made them
        result.data["made"] = made("cpu" if name in ON_CPU else as_device(options.device))
    _save(result, out, name, started)


def _report(name: str, out: Path) -> None:
    """Write the table and the figure of an experiment again, from its stored numbers."""
    started = time.perf_counter()
    experiment, file = EXPERIMENTS[name], out / f"{name}.json"
    if not isinstance(experiment, Reporting):
        raise UserError(f"the stored numbers of {name} are not enough to draw its figure: leave out `--stored`")
    if not file.exists():
        raise UserError(f"there is no `{file}`: leave out `--stored` to measure")
    data = json.loads(file.read_text(encoding="utf-8"))
    result = Outcome(data, experiment.markdown(experiment.TITLE, data), experiment.plot(out, name, data))
    _save(result, out, name, started)


def _save(result: Outcome, out: Path, name: str, started: float) -> None:
    files = result.save(out, name)
    print(result.markdown)
    print(f"\nWritten to {', '.join(map(str, files))} ({time.perf_counter() - started:.1f} s)\n", flush=True)
