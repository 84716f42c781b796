"""The cost of following correlations: the covariance of ten outputs, compared with AP2 and backward passes.

One pass gives the means, and one backward pass for each output gives their covariance. So the cost should equal AP2
plus ten backward passes to the inputs. The variants take turns, round by round, so other work on the machine affects
all alike. The result is the median over rounds, in passes of the plain network.

    python benchmarks/correlation.py                 # on a GPU, or on the CPU if there is none
    python benchmarks/correlation.py --device cpu --items 8 --rounds 5

The numbers go to `results/benchmarks/correlation.json`, beside those of other devices, and the table to
`correlation.md`.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop import Normal, propagate
from momentprop.markdown import table
from momentprop_experiments.provenance import start
from momentprop_experiments.runs import trained_networks

NETWORKS = {
    "LeNet": ("lenet-lrelu", (1, 28, 28)),
    "CIFAR network": ("cifar-lrelu", (3, 32, 32)),
    "ViT": ("vit", (3, 32, 32)),
}
"""Trained networks in the repository, with the shape of their images."""

VARIANCE = 0.01
OUTPUTS = 10
COLUMNS = ("AP2", "backward", "joint", "linear", "probes 16", "joint / (AP2 + 10 backward)")


def variants(model: nn.Module, x: Tensor) -> dict[str, Callable[[], Any]]:
    """Return what is timed."""
    with torch.enable_grad():
        noisy = Normal.of(x.clone().requires_grad_(), torch.full_like(x, VARIANCE))
        first = model(noisy).loc[:, 0].sum()

    def ap2() -> Any:
        return propagate(model, x, input_variance=VARIANCE, covariance=False)

    def joint(**options: Any) -> Tensor:
        return propagate(model, x, input_variance=VARIANCE, **options).covariance  # type: ignore[no-any-return]

    return {
        "plain": lambda: model(x),
        "AP2": ap2,
        "backward": lambda: torch.autograd.grad(first, noisy.loc, retain_graph=True),
        "joint": lambda: joint(covariance=True),
        "linear": lambda: joint(method="linear"),
        "probes 16": lambda: joint(covariance=True, probes=16),
    }


@torch.no_grad()
def costs(model: nn.Module, x: Tensor, rounds: int) -> dict[str, float]:
    """Return the median time of every variant, in passes of the plain network."""
    timed = variants(model, x)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(rounds + 1):
        for name, run in timed.items():
            _wait(x)
            start = time.perf_counter()
            run()
            _wait(x)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    found = {name: medians[name] / medians["plain"] for name in medians if name != "plain"}
    found[COLUMNS[-1]] = found["joint"] / (found["AP2"] + OUTPUTS * found["backward"])
    return found


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    """Time all networks, and write the numbers and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--items", type=int, nargs="+", default=[8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1] / "results" / "benchmarks")
    options = parser.parse_args()
    path = options.folder / "correlation.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()} CPU"
    for title, (name, shape) in NETWORKS.items():
        model = trained_networks.load(name)[0].to(options.device).eval().requires_grad_(False)
        for items in options.items:
            made = start()
            x = torch.rand(items, *shape, generator=torch.Generator().manual_seed(0)).to(options.device)
            found = costs(model, x, options.rounds)
            known[f"{title}, {items} images, {device}"] = {**found, "made": made(options.device)}
            print(title, items, {name: round(value, 2) for name, value in found.items()}, flush=True)
    options.folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(dict(sorted(known.items()))), encoding="utf-8")


def markdown(known: dict[str, dict[str, float]]) -> str:
    """Return the table of all devices."""
    rows = [
        [name.replace(", 1 images", ", 1 image"), *(f"{found[column]:.2f}" for column in COLUMNS)]
        for name, found in known.items()
    ]
    return table(["network", *COLUMNS], rows) + "\n"


if __name__ == "__main__":
    main()
