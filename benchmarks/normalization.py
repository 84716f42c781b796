"""The cost of normalization: a training step of the CIFAR-10 network with none, batch or analytic normalization.

The step is that of `momentprop train`, on random images. Standard training has no noise; AP2 propagates dropout of 0.2.
A fourth variant replaces each normalization by a learned scale and shift: the cost of analytic normalization beyond
that is the pass of statistics. That pass is also timed alone, with its gradients. The variants take turns, round by
round, so other work on the machine affects all alike. The result is the median over rounds, relative to the step
without normalization.

    python benchmarks/normalization.py            # on a GPU, or on the CPU if there is none
    python benchmarks/normalization.py --device cpu --modes eager --rounds 5 --steps 1

The numbers go to `results/benchmarks/normalization.json`, beside those of other devices and modes, and the table to
`normalization.md`.
"""

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.data import Dataset, Split
from momentprop.markdown import table
from momentprop.nn import AnalyticNorm
from momentprop.normalization.layers import detach, replaced
from momentprop.training.distributed import processes
from momentprop.training.loop import Trainer
from momentprop_experiments.provenance import start
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import build

METHODS: dict[str, dict[str, Any]] = {
    "standard": {"method": "sample"},
    "AP2": {"method": "ap2", "dropout": 0.2},
}
VARIANTS = {"none": "none", "batch": "bn", "affine": "analytic", "analytic": "analytic", "alone": "analytic"}
"""The variants by name, with the normalization of their networks."""

COLUMNS = {
    **{name: f"{name} / none" for name in ("batch", "affine", "analytic")},
    "statistics": "(analytic - affine) / none",
    "alone": "statistics alone, eager / none",
}
"""The columns of the table."""

MODES: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"compile": True},
    "graph": {"graph": True},
    "compiled-graph": {"compile": True, "graph": True},
}
"""The ways to run a step, as settings of `momentprop train`; graphs need a GPU."""

BATCH = 128
WARM_UP = 4  # steps that compile, record, and let the device choose its algorithms

_NOTES = (
    "The table compares the time of a training step with and without normalization, in the CIFAR-10 network with "
    f"batches of {BATCH}. Numbers are medians over rounds in which the variants take turns, with the quartiles in "
    "brackets. *Affine* puts a learned scale and shift in the place of each normalization, so what *analytic* takes "
    "beyond it is the pass of statistics. The last column is that pass alone, with its gradients."
)


def main() -> None:
    """Measure, print the table, and save it."""
    options, text = arguments(__doc__), ""
    for method, mode in itertools.product(METHODS, options.modes):
        made = start()
        found = {f"{method}, {mode}": measure(method, mode, options)}
        text = record("normalization", found, options, markdown, made)
    print(text)


def record(
    name: str,
    found: dict[str, Any],
    options: argparse.Namespace,
    markdown: Callable[[dict[str, Any]], str],
    made: Callable[[torch.device], dict[str, Any]],
    about: dict[str, Any] | None = None,
) -> str:
    """Add the cases of a device to the file of all devices, each with its provenance, and write the table of all."""
    path = options.out / f"{name}.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    about = about or {"torch": torch.__version__, "rounds": options.rounds, "steps": options.steps}
    device = device_name(options.device)
    before = data.get(device, {})
    origin = made(processes(options.device).device)
    data[device] = {
        **about,
        "cases": {**before.get("cases", {}), **found},
        "made": {**before.get("made", {}), **dict.fromkeys(found, origin)},
    }
    text = markdown(data)
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    path.with_suffix(".md").write_text(text + "\n")
    return text


def arguments(description: str | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--modes", nargs="+", choices=MODES, help="by default all that the device supports")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each variant")
    parser.add_argument("--steps", type=int, default=20, help="training steps in a turn")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    if options.modes is None:
        options.modes = list(MODES)[: None if processes(options.device).device.type == "cuda" else 2]
    return options


def device_name(name: str) -> str:
    """Return the name of the device under which its measurements are kept."""
    device = processes(name).device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}, {threads} thread{'s' * (threads > 1)})"


def measure(method: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the milliseconds of a step of each variant, and the quartiles of its ratio to `none`."""
    steps = {variant: stepper(method, variant, mode, options.device) for variant in VARIANTS}
    rounds = taken_in_turns(steps, options)
    ratios = {variant: [each[variant] / each["none"] for each in rounds] for variant in VARIANTS}
    ratios["statistics"] = [(each["analytic"] - each["affine"]) / each["none"] for each in rounds]
    return {
        "milliseconds": {name: rounded(1e3 * statistics.median(each[name] for each in rounds)) for name in VARIANTS},
        "ratio": {name: [rounded(x) for x in quartiles(ratios[name])] for name in COLUMNS},
    }


def taken_in_turns(steps: Mapping[str, Callable[[], None]], options: argparse.Namespace) -> list[dict[str, float]]:
    """Return the seconds of every step, for each round.

    The steps share the compiler's cache for one function, which has few entries: a step that found none free would run
    eagerly, so this is an error.
    """
    torch.compiler.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for step in steps.values():
            timed(step, WARM_UP)
        return [{name: timed(step, options.steps) for name, step in steps.items()} for _ in range(options.rounds)]


class Affine(nn.Module):
    """A learned scale and shift of each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels, 1, 1)), nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        """Scale and shift the input."""
        return torch.addcmul(self.bias, input, self.weight)


def stepper(method: str, variant: str, mode: str, device: str) -> Callable[[], None]:
    """Return a function that makes one training step."""
    norm = VARIANTS[variant]
    given = {**METHODS[method], **MODES[mode]}
    config = Config(network="cifar", norm=norm, device=device, batch_size=BATCH, **given)
    pixels = torch.randint(256, (4 * BATCH, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = Split(pixels, torch.arange(len(pixels)) % 10)
    training = Dataset("random", tuple("0123456789"), split, split).normalized().train
    model = build(config, training)
    if variant == "alone":
        return statistics_alone(model.to(processes(device).device))
    if variant == "affine":
        detach(model)
        for layer in [module for module in model.modules() if isinstance(module, AnalyticNorm)]:
            replaced(model, layer, Affine(layer.channels))
    trainer = Trainer(model, training, config, processes(device))
    batch = torch.arange(BATCH, device=trainer.ranks.device)
    return lambda: trainer.step(batch)


def statistics_alone(model: nn.Module) -> Callable[[], None]:
    """Return a function that runs the pass of statistics and its gradients."""
    norms = [module for module in model.modules() if isinstance(module, AnalyticNorm)]

    def step() -> None:
        for hook in model._forward_pre_hooks.values():
            hook(model, ())
        made = [part for norm in norms if norm.normalizer is not None for part in norm.normalizer[2:]]
        torch.autograd.grad([part.sum() for part in made], list(model.parameters()))

    return step


def timed(step: Callable[[], None], steps: int) -> float:
    """Return the mean seconds of a step over several steps."""
    _wait()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    _wait()
    return (time.perf_counter() - started) / steps


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def quartiles(numbers: list[float]) -> list[float]:
    """Return the quartiles; a single number is all three."""
    return [numbers[0]] * 3 if len(numbers) == 1 else statistics.quantiles(numbers, n=4, method="inclusive")


def rounded(x: float) -> float:
    """Round a number for a file."""
    return float(f"{x:.4g}")


def markdown(data: dict[str, Any]) -> str:
    """Return the table of all devices."""
    rows = [
        [device, about["torch"], case, f"{found['milliseconds']['none']:.3g} ms", *map(shown, found["ratio"].values())]
        for device, about in data.items()
        for case, found in about["cases"].items()
    ]
    head = ("device", "torch", "training", "none", *COLUMNS.values())
    return "\n\n".join(["# The cost of normalization", _NOTES, table(head, rows)])


def shown(found: list[float]) -> str:
    """Format quartiles for a table."""
    low, median, high = found
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
