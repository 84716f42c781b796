"""The cost of calibrated AP2 compared with plain AP2, in the CIFAR network: eager and compiled, a batch and one image.

    python benchmarks/calibration.py --device cpu --out results/benchmarks

In each round all methods run one after the other, in alternating order, so other work on the machine affects them
alike; only ratios within a round are reported. A second run on another device adds to the first one's file.
"""

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop import Normal
from momentprop.checking.formatting import NONE
from momentprop.markdown import table
from momentprop.sampling import progress
from momentprop.training.distributed import as_device
from momentprop_experiments.provenance import start
from momentprop_experiments.runs import trained_networks

NETWORK, VARIANCE = "cifar-lrelu", 0.1
TITLE = "What calibrated AP2 costs, compared with plain AP2"


class Plain(nn.Module):
    """AP2 of a model as a module, like the calibrated one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Normal:
        """Run the model by AP2."""
        return momentprop.propagate(self.model, x, input_variance=VARIANCE, covariance=False)


def measure(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the ratios of all forms and batches."""
    model, _ = trained_networks.load(NETWORK)
    images = torch.randn(max(*options.batches, 8), 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model, images = model.to(device), images.to(device)
    fitted = momentprop.calibrate(model, images[:8], input_variance=VARIANCE, samples=50)
    methods = {"AP2": Plain(model), "calibrated": momentprop.calibrated(model, fitted).to(device)}
    found = {}
    with torch.no_grad(), progress(len(options.forms) * len(options.batches), "timing") as bar:
        for form, batch in itertools.product(options.forms, options.batches):
            given = images[:batch]
            runs = {"plain": _on(model, given)} if form == "eager" else {}  # compiling it would add nothing
            runs |= {name: _on(_made(method, form), given) for name, method in methods.items()}
            found[f"{form}, batch {batch}"] = _ratios(runs, options.rounds, options.seconds)
            bar.update(1)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return {"machine": f"{name}, {torch.get_num_threads()} threads", "torch": torch.__version__, "runs": found}


def _made(module: nn.Module, form: str) -> Callable[..., Any]:
    return torch.compile(module, fullgraph=True, dynamic=False) if form == "compiled" else module


def _on(run: Callable[..., Any], images: Tensor) -> Callable[[], Any]:
    return lambda: run(images)


def _ratios(runs: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, Any]:
    """Return quartiles over rounds of the time ratios AP2 / plain network and calibrated AP2 / AP2."""
    for run in runs.values():
        run()  # compiles, and warms up
    repeats = max(1, round(0.05 / _time(runs["AP2"])))
    times: list[dict[str, float]] = []
    start = time.perf_counter()
    for done in range(rounds):
        if done >= 5 and time.perf_counter() - start > seconds:
            break
        order = list(runs) if done % 2 == 0 else list(runs)[::-1]
        times.append({name: _time(runs[name], repeats) for name in order})
    pairs = {"AP2 / plain network": ("AP2", "plain"), "calibrated AP2 / AP2": ("calibrated", "AP2")}
    told = {name: _quartiles([each[one] / each[other] for each in times])
            for name, (one, other) in pairs.items() if other in runs}  # fmt: skip
    return {"rounds": len(times), **told}


def _quartiles(ratios: list[float]) -> list[float]:
    return [round(x, 3) for x in statistics.quantiles(ratios, n=4)]


def _time(function: Callable[[], Any], repeats: int = 1) -> float:
    _finish()
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    _finish()
    return (time.perf_counter() - start) / repeats


def _finish() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def report(data: dict[str, Any]) -> str:
    """Return the table of all machines."""
    head = ["machine", "form", "AP2 / plain network", "calibrated AP2 / AP2", "rounds"]
    rows = []
    for measured in data["machines"].values():
        for form, found in measured["runs"].items():
            cells = [_cell(found.get(name)) for name in head[2:4]]
            rows.append([measured["machine"], form, *cells, str(found["rounds"])])
    about = (
        "The table has ratios of times of a pass without gradients, in the CIFAR-10 network (`cifar-lrelu`, input "
        "variance 0.1). They are medians over rounds in which all methods take turns, with the quartiles in brackets. "
        "`python benchmarks/calibration.py` measures them."
    )
    return f"# {TITLE}\n\n{about}\n\n{table(head, rows)}\n"


def _cell(quartiles: list[float] | None) -> str:
    return NONE if quartiles is None else "{1:.2f} ({0:.2f} … {2:.2f})".format(*quartiles)


def main() -> None:
    """Measure on a device, and save the numbers and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    parser.add_argument("--forms", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 1])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each form and batch, at least five rounds")
    options = parser.parse_args()
    device = as_device(options.device)
    file = options.out / "calibration.json"
    data = json.loads(file.read_text()) if file.exists() else {"machines": {}}
    made = start()
    data["machines"][device.type] = {**measure(device, options), "made": made(device)}
    options.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, indent=1) + "\n")
    text = report(data)
    file.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
