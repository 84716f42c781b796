"""What an operation costs besides its arithmetic: Python frames, operations of torch, processor time, on tiny tensors.

On any GPU a small network waits for Python, so these counts predict its time on any machine.

    python benchmarks/counts.py                              # this checkout
    python benchmarks/counts.py --beside ../other/src        # and another one, as columns *before*

The table goes to `results/benchmarks/counts.md`. Kernels are built first. A frame is a call of a Python function,
including torch's own. The processor time is the least of some rounds; it depends on the machine, and counts do not.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from contenders import small_mlp
from operations import OPERATIONS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from turns import ROOT, Run, about

from momentprop import Mean, Normal, calibrate, calibrated, propagate
from momentprop.codegen import programs
from momentprop.markdown import table

ROUNDS, TURN = 15, 0.02  # seconds of a turn


def contenders() -> Iterator[tuple[str, Run, dict[str, Run]]]:
    """Yield titles with a run of plain torch, and the methods' runs."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(size, generator=generator) for size in ((8, 8, 3, 3), (8,)))
    for name, (function, shape) in OPERATIONS.items():
        x = torch.randn(shape, generator=generator)
        values = {"AP2": Normal(x, 0.1), "AP1": Mean(x)}

        def applied(function: Callable[..., Any], x: Any) -> Run:
            return lambda: function(x, weight, bias)

        yield name, applied(function, x), {kind: applied(function, value) for kind, value in values.items()}
    mlp, x = small_mlp().eval(), torch.randn(2, 16, generator=generator)
    value = Normal(x, 0.1)
    yield "MLP", lambda: mlp(x), {"AP2": lambda: mlp(value), "AP1": lambda: mlp(Mean(x)), **methods(mlp, x)}
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    tokens = torch.randn(1, 4, 8, generator=generator)
    tokens_value = Normal(tokens, 0.1)
    yield "encoder layer", lambda: encoder(tokens), {"AP2": lambda: encoder(tokens_value)}


def methods(model: nn.Module, x: Tensor) -> dict[str, Run]:
    """Return the calls of the library that run a model."""
    corrected = calibrated(model, calibrate(model, x, input_variance=0.1, samples=50))
    options: dict[str, Any] = {"input_variance": 0.1}
    return {
        "covariance=False": lambda: propagate(model, x, **options, covariance=False),
        "calibrated": lambda: corrected(x),
        "32 draws": lambda: propagate(model, x, **options, method="sample", samples=32),
    }


class _Counter(TorchDispatchMode):
    """Counts the operations that torch starts."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def started(run: Run) -> int:
    """Return how many operations torch starts."""
    with _Counter() as counter:
        run()
    return counter.count


def frames(run: Run) -> int:
    """Return how many Python functions are called, except the run itself."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count - 1


def microseconds(runs: dict[str, Run]) -> dict[str, float]:
    """Return the least processor time of each run, over rounds in which they take turns."""
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            count, begin = 0, time.process_time()
            while (spent := time.process_time() - begin) < TURN:
                run()
                count += 1
            least[name] = min(least[name], 1e6 * spent / count)
    return least


def measure() -> dict[str, dict[str, Any]]:
    """Return frames, operations of torch and microseconds, by title and method."""
    found = {}
    with torch.no_grad():
        for title, plain, others in contenders():
            runs = {"torch": plain, **others}
            for run in runs.values():
                for _ in range(3):
                    run()
            times = microseconds(runs)
            found[title] = {
                name: {"frames": frames(run), "started": started(run), "us": round(times[name], 1)}
                for name, run in runs.items()
            }
    return found


def quicker(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return measurements with the lesser of two times."""
    return {
        title: {name: min(found, other[title][name], key=lambda each: each["us"]) for name, found in methods.items()}
        for title, methods in one.items()
    }


def elsewhere(source: Path) -> dict[str, dict[str, Any]]:
    """Measure another checkout, in a process of its own."""
    paths = [str(source.resolve()), str(ROOT / "experiments" / "src")]
    made = subprocess.run(
        [sys.executable, __file__, "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(made.stdout)  # type: ignore[no-any-return]


def markdown(found: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]] | None) -> str:
    """Return the table; numbers of another checkout stand before an arrow."""
    rows = []
    for title, methods in found.items():
        for name, now in methods.items():
            was = None if before is None or name == "torch" else before[title].get(name)
            cells = [f"{was[key]} → {now[key]}" if was else str(now[key]) for key in ("frames", "started", "us")]
            rows.append(["" if name != "torch" else title, name, *cells])
    facts = about()
    used = f"torch {facts['torch']}, Python {facts['python']}, momentprop at {facts['commit']}, {facts['processor']}"
    head = ("operation", "method", "frames", "operations of torch", "processor µs")
    return f"{used}\n\n{table(head, rows)}"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--beside", type=Path, help="the source folder of another checkout to compare with")
    parser.add_argument("--json", action="store_true", help="print the numbers, and write nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if programs.mode() == "auto":
        programs.set_mode("wait")
    if options.json:
        print(json.dumps(measure()))
        return
    before = None if options.beside is None else elsewhere(options.beside)
    now = measure()
    if before is not None:  # in turns, because other work on the machine comes and goes
        before = quicker(before, elsewhere(options.beside))
        now = quicker(now, measure())
    text = markdown(now, before)
    (options.out / "counts.md").write_text(f"# Counts\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
