"""The library and its peers: accuracy against time, on the same networks, with the same draws.

The script makes its own environment in `build/peers-venv`, with torch and the packages that can be installed, and runs
itself inside. The table names what is missing, with the reason.

    python benchmarks/peers.py            # some minutes to install, some to measure
    python benchmarks/peers.py --quick    # few draws, in this environment: that it runs
    python benchmarks/peers.py --draw     # the figure again, from what is measured

Contenders take turns, round by round. Truth is 100,000 draws. The numbers go to `results/benchmarks/peers.json`, the
table to `peers.md` and the figure to `peers.svg`.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from contenders import small_mlp
from normalization import rounded
from peer_contenders import CONTENDERS, VARIANCE, Answer, Solver
from torch import Tensor, nn
from turns import QUICK, ROOT, Clock, Run, about, milliseconds, take_turns, timed

from momentprop.markdown import table
from momentprop_experiments import drawing
from momentprop_experiments.networks import lenet
from momentprop_experiments.provenance import start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PACKAGES = ("torch-adf", "distprop", "pytagi==0.1.12", "laplace-torch")
BATCHES = (1, 256)
NETWORKS = {"MLP 16-64-64-10": (small_mlp, (16,), 32), "LeNet": (lambda: lenet("relu"), (1, 28, 28), 4)}
"""The networks with the shape of an input, and the number of inputs for the accuracy."""

PATIENCE = 2.0
"""A contender that takes more seconds than this does not take turns: its first call is timed."""

_NOTES = (
    "The tables compare the errors and the times of methods and packages, on ReLU networks with He's initialization "
    f"and inputs of variance {VARIANCE}. `eps_mean` is the error of the means in deviations: their average error "
    "divided by the average deviation. σ is the factor by which deviations are off, the geometric mean of their ratio "
    "to the true ones; 1 is right. KL is the divergence of the class probabilities from the true ones, for normal "
    "logits with these moments; draws use their own softmax."
)


def main() -> None:
    """Measure in a separate environment, and write the table and the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few draws, in this environment")
    parser.add_argument("--inside", action="store_true", help="measure in this environment; install nothing")
    parser.add_argument("--draw", action="store_true", help="draw what is measured, and measure nothing")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or ROOT / ("build" if options.quick else "results") / "benchmarks"
    if options.inside or options.quick:
        made = start()
        found = {name: measure(name, options.quick) for name in options.networks}
        save(out, {**about(), "networks": found, "made": made("cpu")})
        return
    if not options.draw:
        command = [str(environment()), __file__, "--inside", "--out", str(out), "--networks", *options.networks]
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "experiments" / "src")])
        subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True)
    data = json.loads((out / "peers.json").read_text())
    drawing.draw(out, "peers", (9.0, 4.0 * len(data["networks"])), lambda figure: plot(figure, data))


def environment() -> Path:
    """Return the Python of the peers' environment, which is made when first needed."""
    folder = ROOT / "build" / "peers-venv"
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*install, "torch==2.13.0", "numpy"], check=True)
    for package in PACKAGES:  # each may fail: its row then says that it is missing
        subprocess.run([*install, package], check=False)
    # laplace-torch asks for torchvision, whose wheel does not import beside torch without CUDA, and does not need it.
    subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=False)
    (folder / "ready").touch()
    return python


def save(out: Path, data: dict[str, Any]) -> None:
    """Write the numbers and the table."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.json").write_text(json.dumps(data, indent=1) + "\n")
    text = markdown(data)
    (out / "peers.md").write_text(text + "\n", encoding="utf-8")
    print(text)


@torch.no_grad()
def measure(network: str, quick: bool = False) -> dict[str, Any]:
    """Return errors and times of all contenders; for a missing one, the reason."""
    make, shape, items = NETWORKS[network]
    torch.manual_seed(0)
    model = he_initialized(make()).eval().requires_grad_(False)
    x = torch.randn(max(BATCHES), *shape)
    solvers, found = made(model, x[-32:])
    count = 2000 if quick else 100_000
    truth = drawn_truth(model, x[:items], count)
    for name, solver in list(solvers.items()):
        try:
            found[name] = figures(solver(x[:items]), truth)
        except Exception as error:
            traceback.print_exc()
            found[name] = {"missing": _reason(error)}
            del solvers[name]
    for batch in BATCHES if not quick else (1, 2):
        for name, time in times(solvers, x[:batch], QUICK if quick else Clock(seconds=20.0)).items():
            found[name][f"batch {batch}"] = time
    return {name: found[name] for name in CONTENDERS}


def he_initialized(model: nn.Module) -> nn.Sequential:
    """Give every weight He's initialization, and no biases."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return model  # type: ignore[return-value]


def made(model: nn.Sequential, fit: Tensor) -> tuple[dict[str, Solver], dict[str, dict[str, Any]]]:
    """Make all contenders; also return why some are missing."""
    solvers: dict[str, Solver] = {}
    missing: dict[str, dict[str, Any]] = {}
    for name, maker in CONTENDERS.items():
        try:
            solvers[name] = maker(model, fit)
        except Exception as error:  # a package that is absent, broken or unable
            missing[name] = {"missing": _reason(error)}
    return solvers, missing


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:100]


def drawn_truth(model: nn.Module, x: Tensor, count: int, chunk: int = 500) -> Answer:
    """Return mean, variance and class posterior of many draws, in float64."""
    generator = torch.Generator().manual_seed(1)
    total, squares, posterior = (torch.zeros(()) for _ in range(3))
    centre = model(x)  # sums of the remainders do not cancel
    for _ in range(count // chunk):
        noise = torch.randn(chunk, *x.shape, generator=generator)
        y = model((x + VARIANCE**0.5 * noise).flatten(0, 1)).unflatten(0, (chunk, len(x)))
        apart = (y - centre).double()
        total, squares = total + apart.sum(0), squares + apart.square().sum(0)
        posterior = posterior + y.double().softmax(-1).sum(0)
    mean = total / count
    return Answer(centre + mean, squares / count - mean.square(), posterior=posterior / count)


def figures(answer: Answer, truth: Answer) -> dict[str, float | None]:
    """Return the errors of an answer."""
    assert truth.variance is not None
    assert truth.posterior is not None
    deviation = truth.variance.sqrt()
    told: dict[str, float | None] = {"eps_mean": _told((answer.loc - truth.loc).abs().mean() / deviation.mean())}
    if answer.variance is not None:
        told["sigma"] = _told((answer.variance.double().sqrt() / deviation).log().mean().exp())
    log_q = posterior(answer).double().clamp(min=1e-30).log()
    told["kl"] = _told((truth.posterior * (truth.posterior.log() - log_q)).sum(-1).mean())
    return told


def posterior(answer: Answer, count: int = 4000) -> Tensor:
    """Return the mean softmax of normal logits with the moments of an answer, by fixed draws."""
    if answer.posterior is not None:
        return answer.posterior
    if answer.variance is None:
        return answer.loc.softmax(-1)
    noise = torch.randn(count, *answer.loc.shape, generator=torch.Generator().manual_seed(2))
    if answer.covariance is None:
        return (answer.loc + answer.variance.sqrt() * noise).softmax(-1).mean(0)
    values, vectors = torch.linalg.eigh(answer.covariance)
    root = vectors * values.clamp(min=0).sqrt()[:, None, :]  # rounding makes zero eigenvalues negative
    return (answer.loc + torch.einsum("bij,nbj->nbi", root, noise)).softmax(-1).mean(0)


def _told(x: Tensor) -> float | None:
    return rounded(float(x)) if math.isfinite(x) else None


def times(solvers: dict[str, Solver], x: Tensor, clock: Clock) -> dict[str, float]:
    """Return the median milliseconds of every contender; the slow ones run once."""
    runs: dict[str, Run] = {name: (lambda solver=solver: solver(x)) for name, solver in solvers.items()}  # type: ignore[misc]
    first = {name: timed(run) for name, run in runs.items()}
    fast = {name: run for name, run in runs.items() if first[name] < PATIENCE}
    rounds = take_turns(fast, clock)
    return {name: milliseconds(rounds, name) if name in fast else rounded(1e3 * first[name]) for name in runs}


def markdown(data: dict[str, Any]) -> str:
    """Return the tables of all networks."""
    about = f"torch {data['torch']}, Python {data['python']}, momentprop at {data['commit']}, {data['processor']}"
    parts = ["# Compared with other libraries", _NOTES, f"{about}, {data['threads']} threads."]
    for network, found in data["networks"].items():
        keys = sorted({key for each in found.values() for key in each if key.startswith("batch")})
        rows = [[name, *_cells(each, keys)] for name, each in found.items()]
        head = ("method", "eps_mean", "σ", "KL", *(f"{key}, ms" for key in keys))
        parts += [f"## {network}", table(head, rows)]
    return "\n\n".join(parts)


def _cells(found: dict[str, Any], keys: list[str]) -> list[str]:
    if "missing" in found:
        return [found["missing"], "", "", *("" for _ in keys)]
    return ["" if found.get(key) is None else f"{found[key]:.3g}" for key in ("eps_mean", "sigma", "kl", *keys)]


def plot(figure: "Figure", data: dict[str, Any]) -> None:
    """Draw error of the mean against time; a line joins contenders that nothing beats in both."""
    networks = data["networks"]
    grid = figure.subplots(len(networks), 2, squeeze=False)
    for axes, (network, found) in zip(grid, networks.items(), strict=True):
        for axis, batch in zip(axes, BATCHES, strict=True):
            points = {
                name: (each[f"batch {batch}"], each["eps_mean"])
                for name, each in found.items()
                if each.get("eps_mean") and f"batch {batch}" in each
            }
            for name, (point, lift) in lifted(points).items():
                color = "#1f4e9c" if name.startswith("momentprop") else "0.55" if "draws" in name else "#c1272d"
                axis.plot(*point, "o", color=color, markersize=4)
                label = name.removeprefix("momentprop ")
                axis.annotate(label, point, (3, lift), textcoords="offset points", fontsize=6.5, color=color)
            axis.margins(x=0.2, y=0.12)
            axis.plot(*zip(*front(list(points.values())), strict=True), color="0.6", linewidth=1, zorder=0)
            axis.set(xscale="log", yscale="log", title=f"{network}, batch {batch}")
            axis.set(xlabel="milliseconds", ylabel="error of the mean in deviations")


def lifted(points: dict[str, tuple[float, float]]) -> dict[str, tuple[tuple[float, float], float]]:
    """Return each point with the height of its label above it: labels of equal heights would cover each other.

    >>> lifted({"b": (2.0, 0.1), "a": (1.0, 0.1), "c": (1.0, 5.0)})
    {'a': ((1.0, 0.1), 3.0), 'c': ((1.0, 5.0), 3.0), 'b': ((2.0, 0.1), -9.0)}
    """
    seen: list[float] = []
    found = {}
    for name, (time, error) in sorted(points.items(), key=lambda item: (item[1][0], item[1][1])):
        among = sum(abs(math.log(error / other)) < 0.2 for other in seen)
        found[name] = ((time, error), (3.0, -9.0, 11.0, -17.0)[among % 4])
        seen.append(error)
    return found


def front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in both coordinates, from left to right.

    >>> front([(1, 5), (2, 6), (3, 1)])
    [(1, 5), (3, 1)]
    """
    best: list[tuple[float, float]] = []
    for point in sorted(points):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


if __name__ == "__main__":
    main()
