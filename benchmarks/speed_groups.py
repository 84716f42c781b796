"""The groups of measurements that `speed.py` makes, each with its targets.

A group is a function that yields cases by name. The result of a case is a dictionary: `measured` (quartiles of a ratio,
or seconds), `target` if there is one, and the `milliseconds` or `mebibytes` of both contenders.
"""

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import normalization
import torch
from contenders import (
    both_ways,
    calibrated,
    compiled,
    drawn,
    forward,
    in_bfloat16,
    propagated,
    repeated,
    roughly,
    scene,
)
from first_call import LIMIT, first_call, import_seconds
from normalization import quartiles, rounded, stepper
from operations import OPERATIONS, operation
from peak_memory import peak
from turns import QUICK, Clock, Run, ratio, take_turns

Case = dict[str, Any]
Cases = Iterator[tuple[str, Callable[[], Case]]]
Target = float | None

FORWARD: dict[str, list[tuple[str, int, Target, Target]]] = {
    "cuda": [
        ("CIFAR", 1, 3.5, None),
        ("CIFAR", 128, 2.8, 2.8),
        ("CIFAR", 512, 1.9, 2.0),
        ("LeNet", 512, 3.2, 2.5),
        ("ResNet-18", 128, 3.2, 2.8),
        ("ViT", 128, 5.0, 5.0),
    ],
    "cpu": [
        ("LeNet", 128, 3.0, 2.8),
        ("CIFAR", 32, 2.5, 2.6),
        ("ResNet-18", 16, 2.4, 2.3),
        ("ViT", 32, 5.0, 5.0),
        ("MLP", 1, 6.0, None),
        ("MLP", 256, 4.0, None),
    ],
}
"""Networks and batches by device, with the targets of a forward pass and of a forward and backward pass."""

DRAWN = {"cuda": ("CIFAR",), "cpu": ("LeNet",)}
"""The networks to draw from."""

SMALL = ("MLP", "LeNet")
"""The networks that `--quick` takes."""

ROUGH = ", variances in bfloat16"

LARGE = {"cuda": 128, "cpu": 32}
"""The batch of the CIFAR network for comparing the library's methods."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where and how long to measure; `quick` takes the smallest networks and tiny batches."""

    device: str
    quick: bool = False
    clock: Clock = dataclasses.field(default_factory=Clock)

    def batch(self, size: int) -> int:
        """Return the size of a batch."""
        return min(size, 2) if self.quick else size

    def networks(self, *names: str) -> tuple[str, ...]:
        """Return the networks to run."""
        return ("LeNet",) if self.quick else names

    def eager(self) -> list[tuple[str, int, Target, Target]]:
        """Return the networks, batches and targets of eager passes."""
        rows = FORWARD[self.device]
        return [(name, self.batch(size), *targets) for name, size, *targets in rows if not self.quick or name in SMALL]


def setting(device: str, quick: bool) -> Setting:
    """Return the setting of a device."""
    return Setting(device, quick, QUICK if quick else Clock())


def eager_forward(given: Setting) -> Cases:
    """AP2 over the plain network, a forward pass without gradients."""
    for network, batch, target, _ in given.eager():
        yield f"{network}, batch {batch}", partial(_compared, given, network, batch, forward, ("AP2", "plain"), target)


def eager_backward(given: Setting) -> Cases:
    """AP2 over the plain network, a forward and a backward pass."""
    for network, batch, _, target in given.eager():
        yield (
            f"{network}, batch {batch}",
            partial(_compared, given, network, batch, both_ways, ("AP2", "plain"), target),
        )


def ap1(given: Setting) -> Cases:
    """AP1 over the plain network, a forward pass without gradients."""
    batch = given.batch(128)
    for network in given.networks("LeNet", "CIFAR") if given.device == "cuda" else ("LeNet",):
        yield f"{network}, batch {batch}", partial(_compared, given, network, batch, forward, ("AP1", "plain"), 1.05)


def methods(given: Setting) -> Cases:
    """The calls of `propagate` over AP2 by `model(Normal(x, v))`."""
    (network,), batch = given.networks("CIFAR"), given.batch(LARGE[given.device])
    targets = {"propagate": 1.1, "joint": 7.0, "probes": 12.0} if given.device == "cuda" else {"propagate": 1.1}
    titles = {
        "propagate": "`covariance=False`",
        "joint": "covariance of ten outputs",
        "probes": "covariance of ten outputs, `probes=16`",
    }
    rounds: list[dict[str, float]] = []

    def case(name: str) -> Case:
        if not rounds:
            rounds.extend(take_turns(propagated(scene(network, batch, given.device)), given.clock))
        return {**ratio(rounds, name, "AP2"), "target": targets.get(name)}

    for name, title in titles.items():
        yield f"{title}, {network}, batch {batch}", partial(case, name)


def rough_variances(given: Setting) -> Cases:
    """AP2 with variances in bfloat16 over AP2, and how far that changes the deviations."""
    batch = given.batch(LARGE[given.device])
    for network in given.networks("LeNet", "CIFAR", "ResNet-18", "ViT"):
        yield (
            f"{network}, batch {batch}",
            partial(_compared, given, network, batch, in_bfloat16, ("bfloat16", "AP2"), None),
        )
        yield f"{network}, change of deviations", partial(_change, given, network, batch)


def _change(given: Setting, network: str, batch: int) -> Case:
    exact, rough = (run() for run in in_bfloat16(scene(network, batch, given.device)).values())
    change = 100 * (rough.variance / exact.variance).log().abs() / 2
    return _quartiles(change.flatten().tolist(), None, rounds=change.numel(), unit="%")


def sample(given: Setting) -> Cases:
    """`method="sample"` with 32 draws over one batch by hand."""
    for network, batch in itertools.product(given.networks(*DRAWN[given.device]), sorted({1, given.batch(16)})):
        yield f"{network}, batch {batch}", partial(_compared, given, network, batch, drawn, ("sample", "by hand"), 1.3)


def first_sample(given: Setting) -> Cases:
    """The first call of `method="sample"` over the first batch by hand, each in a new process."""
    (network,) = given.networks(*DRAWN[given.device])
    yield f"{network}, batch 1", partial(_first, given, "draw", ("sample", "by hand"), network, 1, 3.0, 3)


def first_compiled(given: Setting) -> Cases:
    """The first call of compiled AP2 over that of the compiled plain network, each in a new process."""
    network, batch = ("ResNet-18", 128) if given.device == "cuda" else ("CIFAR", 32)
    network, batch = given.networks(network)[0], given.batch(batch)
    target = 2.5 if given.device == "cuda" else None
    yield f"{network}, batch {batch}", partial(_first, given, "compile", ("AP2", "plain"), network, batch, target, 1)


def first_eager(given: Setting) -> Cases:
    """The first eager call of AP2 over that of the plain network, each in a new process; and if it waits for builds."""
    (network,) = given.networks("CIFAR")
    for kind, title in (("eager", ""), ("built", ", built at once")):
        yield f"{network}, batch 1{title}", partial(_first, given, kind, ("AP2", "plain"), network, 1, None, 3)


def encoder(given: Setting) -> Cases:
    """Seconds to compile AP2 of a transformer encoder of two layers, on the CPU."""
    if given.device == "cpu":
        yield "two layers", _encoder


def compiled_forward(given: Setting) -> Cases:
    """AP2 over the plain network, both compiled, a forward pass without gradients."""
    batch, target = (128, 1.6) if given.device == "cuda" else (16, None)
    (network,), batch = given.networks("ResNet-18"), given.batch(batch)
    for kind, title in (("AP2", ""), ("bfloat16", ROUGH)):
        case = partial(_compared, given, network, batch, compiled, (kind, "plain"), target)
        yield f"{network}, batch {batch}{title}", case


def training(given: Setting) -> Cases:
    """A compiled training step by AP2 with dropout over a standard step."""

    def case(change: Callable[[Run], Run]) -> Case:
        runs = {
            "plain": stepper("standard", "none", "compiled", given.device),
            "AP2": change(stepper("AP2", "none", "compiled", given.device)),
        }
        target = 1.55 if given.device == "cuda" else 1.7
        return {**ratio(take_turns(runs, given.clock), "AP2", "plain"), "target": target}

    yield "CIFAR, batch 128", partial(case, lambda run: run)
    if given.device == "cuda":
        yield f"CIFAR, batch 128{ROUGH}", partial(case, roughly)


def repeated_passes(given: Setting) -> Cases:
    """AP2 over the plain network, each by the library's call for repeated passes."""
    if given.device == "cuda":  # elsewhere the model itself runs
        for network in ("LeNet", "CIFAR"):
            yield f"{network}, batch 1", partial(_compared, given, network, 1, repeated, ("AP2", "plain"), 2.2)


def calibration(given: Setting) -> Cases:
    """Calibrated AP2 over AP2, eager and compiled."""
    (network,) = given.networks("CIFAR")
    for form in ("eager",) if given.quick else ("eager", "compiled"):
        runs = partial(calibrated, compiled=form == "compiled")
        for batch in (1, given.batch(LARGE[given.device])):
            case = partial(_compared, given, network, batch, runs, ("calibrated", "AP2"), 1.1)
            yield f"{network}, batch {batch}, {form}", case


def analytic(given: Setting) -> Cases:
    """The share of a step of AP2 that the statistics of analytic normalization add, compiled."""

    def case() -> Case:
        options = argparse.Namespace(device=given.device, rounds=7, steps=20 if given.device == "cuda" else 1)
        found = normalization.measure("AP2", mode, options)
        return {"measured": found["ratio"]["statistics"], "target": 0.05, "rounds": options.rounds}

    mode = "compiled-graph" if given.device == "cuda" else "compiled"
    yield f"CIFAR training step, {mode}", case


def memory(given: Setting) -> Cases:
    """Peak memory of AP2 over that of the plain network."""
    batch = given.batch(128 if given.device == "cuda" else 16)
    for network in given.networks("LeNet", "CIFAR", "ResNet-18", "ViT"):
        for title, runs, target in (("forward", forward, 3.0), ("forward + backward", both_ways, 4.0)):
            yield f"{network}, batch {batch}, {title}", partial(_peaks, given, network, batch, runs, target)


def importing(given: Setting) -> Cases:
    """Processor seconds of `import momentprop` beyond torch's, in a new process."""
    count = 1 if given.quick else 7
    yield (
        "`import momentprop`",
        lambda: _quartiles(import_seconds(count), 0.3, rounds=count, unit="s"),
    )


def tiny(given: Setting) -> Cases:
    """An operation on a tiny value over the same on a tensor."""
    for name in OPERATIONS:
        yield name, partial(_operation, given, name)


def _operation(given: Setting, name: str) -> Case:
    return ratio(take_turns(operation(name, given.device), given.clock), "AP2", "torch")


def _compared(
    given: Setting,
    network: str,
    batch: int,
    contenders: Callable[..., dict[str, Any]],
    pair: tuple[str, str],
    target: Target,
) -> Case:
    """Let two contenders take turns."""
    torch.compiler.reset()
    runs = contenders(scene(network, batch, given.device))
    rounds = take_turns({name: runs[name] for name in pair}, given.clock)
    return {**ratio(rounds, *pair), "target": target}


def _first(
    given: Setting, kind: str, pair: tuple[str, str], network: str, batch: int, target: Target, count: int
) -> Case:
    """Compare first calls, each in its own process."""
    found: dict[str, list[float]] = {name: [] for name in pair}
    for _ in range(1 if given.quick else count):
        for name in pair:
            seconds = first_call(kind, name, network, batch, given.device)
            if seconds is None:
                return {"failed": f"{name} did not end in {LIMIT} s", "target": target}
            found[name].append(seconds)
    one, other = found.values()
    told = _quartiles([x / y for x, y in zip(one, other, strict=True)], target, rounds=len(one))
    return {**told, "milliseconds": [rounded(1e3 * statistics.median(each)) for each in (one, other)]}


def _encoder() -> Case:
    found = first_call("compile", "AP2", "encoder", 2, "cpu")
    if found is None:
        return {"failed": f"did not end in {LIMIT} s", "target": 60.0, "unit": "s"}
    return _quartiles([found], 60.0, rounds=1, unit="s")


def _peaks(given: Setting, network: str, batch: int, contenders: Callable[..., dict[str, Any]], target: Target) -> Case:
    found = []
    for name in ("AP2", "plain"):
        made = scene(network, batch, given.device)  # each has its own weights
        found.append(peak(contenders(made)[name], given.device))
    mebibytes = [rounded(size / 2**20) for size in found]
    return {**_quartiles([found[0] / found[1]], target, rounds=1), "mebibytes": mebibytes}


def _quartiles(numbers: list[float], target: Target, **more: Any) -> Case:
    return {"measured": [rounded(x) for x in quartiles(numbers)], "target": target, **more}


GROUPS: dict[str, tuple[str, Callable[[Setting], Cases]]] = {
    "forward": ("eager forward, AP2 / plain", eager_forward),
    "backward": ("eager forward + backward, AP2 / plain", eager_backward),
    "tiny": ("tiny tensors, AP2 / torch", tiny),
    "ap1": ("eager forward, AP1 / plain", ap1),
    "methods": ("`propagate` / direct AP2", methods),
    "bfloat16": ("variances in bfloat16, AP2 / AP2", rough_variances),
    "sample": ("32 draws, `sample` / by hand", sample),
    "repeated": ("repeated passes, AP2 / plain", repeated_passes),
    "memory": ("peak memory, AP2 / plain", memory),
    "import": ("import beyond torch, processor seconds", importing),
    "calibrated": ("calibrated / AP2", calibration),
    "first-sample": ("first call of 32 draws, `sample` / by hand", first_sample),
    "first-eager": ("first eager call, AP2 / plain", first_eager),
    "compiled": ("compiled forward, AP2 / plain", compiled_forward),
    "training": ("compiled training step, AP2 / standard", training),
    "first-compiled": ("first compiled call, AP2 / plain", first_compiled),
    "encoder": ("compiling an encoder, seconds", encoder),
    "normalization": ("analytic normalization, share of a step", analytic),
}
"""The groups by the name that `--only` takes, with their titles in the table; those that compile come last."""

SLOW = ("first-compiled", "compiled", "training", "encoder", "normalization")
"""The groups that `--quick` leaves out, because they compile for minutes."""
