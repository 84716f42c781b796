"""How fast every mode is: times as ratios to the plain network in the same mode and precision, beside the targets.

Contenders take turns, round by round, so other work on the machine affects all alike. The result is the median over
rounds of the ratio within a round. On a GPU, TF32 and cuDNN's choice of algorithms are on for all.

    python benchmarks/speed.py --device cuda                      # all groups: about half an hour
    python benchmarks/speed.py --device cpu --only forward tiny   # some groups
    python benchmarks/speed.py --quick                            # a minute or two: that it runs, not how fast
    python benchmarks/speed.py --scale                            # time against depth, width, batch, classes, tokens
    MOMENTPROP_KERNELS=eager python benchmarks/speed.py --only forward --out build/formulas    # without built kernels

Every group is saved as soon as it is measured, in `results/benchmarks/speed.json` with those of other devices, and the
table in `speed.md`. `--quick` writes to `build/benchmarks` instead.
"""

import argparse
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scaling
import torch
from contenders import prepare
from normalization import device_name, record
from speed_groups import GROUPS, SLOW, Case, Setting, setting
from turns import ROOT, about

from momentprop.codegen import programs
from momentprop.markdown import table
from momentprop_experiments.provenance import start

_HEAD = ("first / second", "case", "target", "measured (quartiles)", "first", "second", "rounds")
_NOTES = (
    "The table has the time of a first contender divided by that of a second. Both take turns, round by round; a "
    "number is the median over rounds of the ratio within a round, with the quartiles in brackets. *First* and "
    "*second* are their own median times, or their memory. Memory on a GPU is all that is allocated at the peak, with "
    "weights and inputs; on a CPU it is what the pass allocates."
)


def main() -> None:
    """Measure, save after every group, and print the table."""
    options = arguments()
    prepare(options.device)
    if programs.mode() == "auto":
        programs.set_mode("wait")  # no measurement depends on when a build ends
    given = setting(options.device, options.quick)
    if options.scale:
        print(scaling.run(given, options))
        return
    text = ""
    for group in options.only:
        print(f"{device_name(options.device)}: {group}", flush=True)
        made = start()
        text = record("speed", {group: measure(group, given)}, options, markdown, made, about())
    print(text)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="tiny batches and few rounds, to check that it runs")
    parser.add_argument("--scale", action="store_true", help="measure how times grow, instead of the table")
    parser.add_argument(
        "--draw", action="store_true", help="with `--scale`: draw what is measured, and measure nothing"
    )
    parser.add_argument("--only", nargs="+", choices=(*GROUPS, *scaling.SWEEPS), help="some groups, or some sweeps")
    parser.add_argument("--out", type=Path, help="by default `results/benchmarks`, and `build/benchmarks` if quick")
    options = parser.parse_args(given)
    known: list[str] = list(scaling.SWEEPS if options.scale else GROUPS)
    chosen = options.only or [name for name in known if not (options.quick and name in SLOW)]
    options.only = [name for name in chosen if name in known]
    options.out = options.out or ROOT / ("build" if options.quick else "results") / "benchmarks"
    return options


def measure(group: str, given: Setting) -> dict[str, Case]:
    """Measure all cases of a group; one that fails says why. Tiny batches have no targets."""
    _, cases = GROUPS[group]
    found = {name: _tried(case) for name, case in cases(given)}
    return {name: {**case, "target": None} for name, case in found.items()} if given.quick else found


def _tried(case: Callable[[], Case]) -> Case:
    try:
        return case()
    except Exception as error:  # a case that runs out of memory must not end the others
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:120]}


def markdown(data: dict[str, Any]) -> str:
    """Return the tables of all devices."""
    parts = ["# Speed", _NOTES]
    for device, found in data.items():
        rows = [
            [title if number == 0 else "", name, *_cells(case)]
            for group, (title, _) in GROUPS.items()
            for number, (name, case) in enumerate(found["cases"].get(group, {}).items())
        ]
        parts += [f"## {device}", versions(found), table(_HEAD, rows)]
    return "\n\n".join(parts)


def versions(found: dict[str, Any]) -> str:
    """Return versions and machine of the measurement, in a line."""
    return (
        f"torch {found['torch']}, Python {found['python']}, momentprop at {found['commit']}, "
        f"{found['processor']}, {found['threads']} threads"
    )


def _cells(case: Case) -> list[str]:
    unit = f" {case['unit']}" if "unit" in case else ""
    target = "" if case.get("target") is None else f"<= {case['target']:g}{unit}"
    if "failed" in case:
        return [target, case["failed"], "", "", ""]
    low, median, high = case["measured"]
    spread = f" ({low:.3g} to {high:.3g})" if case["rounds"] > 1 else ""
    sizes = [shown_time(x) for x in case.get("milliseconds", ())] or [f"{x:.3g} MiB" for x in case.get("mebibytes", ())]
    return [target, f"{median:.3g}{unit}{spread}", *(sizes or ["", ""]), str(case["rounds"])]


def shown_time(milliseconds: float) -> str:
    """Format a time.

    >>> shown_time(0.0123), shown_time(12.3), shown_time(12345.0)
    ('12.3 µs', '12.3 ms', '12.3 s')
    """
    for unit, factor in (("µs", 1e3), ("ms", 1.0)):
        if milliseconds * factor < 1000:
            return f"{milliseconds * factor:.3g} {unit}"
    return f"{milliseconds / 1e3:.3g} s"


if __name__ == "__main__":
    main()
