"""`python -m tests.fuzz`: random trials for some minutes, a table of what was tried, and every failure."""

import argparse
import concurrent.futures
import itertools
import multiprocessing
import os
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from tests.fuzz.trials import KINDS, Outcome, run

SHARES = {"elementwise": 0.5, "mixing": 0.15, "programs": 0.1, "models": 0.15, "interrupts": 0.1}
"""The part of the time that each kind gets."""
_MANY = 200  # failures of one kind after which it ends


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials that the options ask for; return 1 if one failed, or if fewer inputs were tried than asked for."""
    options = _options(argv)
    print(f"seed {options.seed}, device {options.device}, {options.processes} processes", flush=True)
    torch.set_num_threads(1)
    chosen = options.only or list(KINDS)
    total = sum(SHARES[kind] for kind in chosen)
    counts: dict[str, Counter[str]] = {}
    failures: list[Outcome] = []
    for kind in chosen:
        counts[kind] = Counter()
        started = time.monotonic()
        seconds = 60 * options.minutes * SHARES[kind] / total
        for outcome in _outcomes(kind, options, started + seconds, counts[kind]):
            counts[kind].update(outcome.counts)
            counts[kind]["trials"] += 1
            if outcome.failure:
                failures.append(outcome)
                counts[kind]["failures"] += 1
                print(f"\n{kind} {outcome.number}: {outcome.failure}", flush=True)
                print(f"  repeat: {_command(outcome, options)}", flush=True)
            _progress(kind, counts[kind], time.monotonic() - started)
            if counts[kind]["failures"] >= _MANY:
                print(f"\n{kind}: {_MANY} failures, no more trials", flush=True)
                break
        counts[kind]["seconds"] = round(time.monotonic() - started)
    print("\n" + table(counts))
    if options.trial is not None:
        print("".join(failure.details for failure in failures))
    _summarize(failures, options)
    short = options.inputs and "elementwise" in chosen and counts["elementwise"]["inputs"] < options.inputs
    if short and options.trial is None:
        print(f"only {counts['elementwise']['inputs']:,} of {options.inputs:,} elementwise inputs were tried in time")
    return int(bool(failures) or (bool(short) and options.trial is None))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="of all trials; by default a new one, which is printed")
    parser.add_argument("--minutes", type=float, help="in all (10 by default; no limit with --inputs alone)")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="one kind of trials; may be repeated")
    parser.add_argument("--inputs", type=lambda text: int(float(text)), help="elementwise inputs to try, such as 1e9")
    parser.add_argument("--device", default="cpu", help="where the tensors are, such as cuda")
    parser.add_argument("--processes", type=int, help="by default one for each core; on a GPU one")
    parser.add_argument("--trial", type=int, help="repeat the trial of this number alone (with --only and --seed)")
    options = parser.parse_args(argv)
    if options.trial is not None and (not options.only or len(options.only) > 1 or options.seed is None):
        parser.error("--trial needs --seed and one --only")
    if options.seed is None:
        options.seed = secrets.randbelow(10**6)
    if options.minutes is None:
        options.minutes = float("inf") if options.inputs and options.only == ["elementwise"] else 10.0
    if options.processes is None:
        options.processes = (os.cpu_count() or 1) if options.device == "cpu" and options.trial is None else 1
    return options


def _outcomes(kind: str, options: argparse.Namespace, deadline: float, counts: Counter[str]) -> Iterator[Outcome]:
    """Run trials until the time is up, or until the inputs that were asked for have been tried."""

    def go_on() -> bool:
        enough = kind == "elementwise" and options.inputs and counts["inputs"] >= options.inputs
        return time.monotonic() < deadline and not enough

    numbers = itertools.takewhile(lambda _: go_on(), itertools.count())
    arguments = ((kind, options.seed, number, options.device) for number in numbers)
    if options.trial is not None:
        arguments = iter([(kind, options.seed, options.trial, options.device)])
    if options.processes == 1:
        yield from itertools.starmap(run, arguments)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.processes, context, torch.set_num_threads, (1,)) as pool:
        waiting = {pool.submit(run, *given) for given in itertools.islice(arguments, 2 * options.processes)}
        while waiting:
            done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                yield future.result()
                waiting.update(pool.submit(run, *given) for given in itertools.islice(arguments, 1))


def _command(outcome: Outcome, options: argparse.Namespace) -> str:
    device = "" if options.device == "cpu" else f" --device {options.device}"
    return f"python -m tests.fuzz --only {outcome.kind} --seed {options.seed} --trial {outcome.number}{device}"


def _progress(kind: str, counts: Counter[str], seconds: float) -> None:
    if sys.stdout.isatty():
        done = ", ".join(f"{value:,} {name}" for name, value in counts.items() if " " not in name)
        print(f"\r{kind}: {done}, {seconds:.0f} s\033[K", end="", flush=True)


def table(counts: dict[str, Counter[str]]) -> str:
    """Return what was tried, in Markdown."""
    lines = ["| fuzz | trials | tried | failures | seconds |", "|---|---|---|---|---|"]
    own = {"trials", "failures", "seconds"}
    for kind, counted in counts.items():
        tried = ", ".join(f"{value:,} {name}" for name, value in counted.items() if name not in own)
        lines.append(f"| {kind} | {counted['trials']:,} | {tried} | {counted['failures']} | {counted['seconds']} |")
    return "\n".join(lines)


def _summarize(failures: Sequence[Outcome], options: argparse.Namespace) -> None:
    """Print the failures by what they say, numbers apart, with the first of each sort."""
    sorts: dict[str, list[Outcome]] = {}
    for failure in failures:
        says = re.sub(r"-?\b[\d.]+(e[+-]?\d+)?\b|inf|nan", "#", failure.failure)
        sorts.setdefault(failure.kind + says, []).append(failure)
    for alike in sorts.values():
        print(f"- {len(alike)} × {alike[0].kind}: {alike[0].failure}\n  {_command(alike[0], options)}")


if __name__ == "__main__":
    sys.exit(main())
