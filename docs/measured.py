"""A build hook that fills the tables of measured numbers: `<!-- measured: NAME -->` becomes the table of that name.

All numbers come from files in `results/`, written by the repository's commands: `momentprop paper correlation`,
`python benchmarks/front.py` and `python benchmarks/speed.py`.
"""

import functools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from momentprop.markdown import table

_RESULTS = Path(__file__).parents[1] / "results"
_MARKER = re.compile(r"<!-- measured: ([\w-]+) -->")

CASES = {
    "sensor": "sensor MLP",
    "digits-mlp-0.25": "digits MLP, 0.25",
    "lenet-lrelu-0.01": "LeNet, 0.01",
    "lenet-lrelu-0.1": "LeNet, 0.1",
    "lenet-dropout": "LeNet, dropout",
    "lenet-bernoulli": "LeNet, Bernoulli units",
    "cifar-lrelu-1e-4": "CIFAR net, 0.0001",
    "cifar-lrelu-0.01": "CIFAR net, 0.01",
    "cifar-lrelu-0.1": "CIFAR net, 0.1",
    "cifar-dropout": "CIFAR net, dropout",
    "narrow-0.01": "ResNet-18, 0.01",
    "digits-transformer-0.01": "transformer, 0.01",
    "vit-0.01": "ViT, 0.01",
    "vit-0.1": "ViT, 0.1",
}
"""The trained networks with their noise, from shallow to deep, by their names in `correlation.json`."""

METHODS = {
    "ap2": "AP2",
    "linear": "linear",
    "calibrated": "calibrated",
    "joint": "joint",
    "probes16": "16 probes",
    "probes64": "64 probes",
}
"""The methods that give a deviation, by their names there."""

DEMANDS = (0.2, 0.1, 0.03)  # how far a mean may be off, in deviations, and a deviation, relatively
_FAR = 0.4  # the error of a deviation, on a logarithmic scale, above which its ratio to the truth says more


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """Replace every marker by its table."""
    return _MARKER.sub(lambda found: TABLES[found[1]](), markdown)


def deviations() -> str:
    """How far deviations are off, by network and method."""
    return _by_case(_deviation)


def means() -> str:
    """How far means are off, in deviations, by network and method."""
    return _by_case(lambda found: _short(found["eps_mean"][0]), {"ap1": "plain network", **METHODS})


def prices() -> str:
    """The time of each method in passes of the plain network."""
    rows = [
        [title, *(_short(cost) if (cost := _cost(name, method)) else "–" for method in METHODS)]
        for name, title in _titles().items()
    ]
    return table(["", *METHODS.values()], rows)


def good_enough() -> str:
    """The cheapest method, including draws, whose means and deviations meet each demand."""
    rows = []
    for name, title in _titles().items():
        best = (_cheapest(name, most) for most in DEMANDS)
        rows.append([title, *(f"{METHODS.get(method, method)} · {_short(price)}" for method, price in best)])
    return table(["", *(f"to {100 * most:.0f} %" for most in DEMANDS)], rows)


def devices() -> str:
    """The time of AP2 in passes of the plain network, on a CPU and on a GPU."""
    rows = []
    for device, found in _read("benchmarks/speed.json").items():
        for group, what in (("forward", "forward"), ("backward", "with gradients"), ("repeated", "recorded")):
            for case, times in found["cases"].get(group, {}).items():
                rows.append([case, what, device.partition(" (")[0], _short(times["measured"][1])])
    rows.sort(key=lambda row: (row[0].partition(",")[0], row[2]))
    return table(["network and batch", "pass", "device", "AP2, in plain passes"], rows)


def trained() -> str:
    """Trained networks: the errors of AP2, of followed correlations and of a calibration."""
    shown = ("ap2", "joint", "calibrated")
    head = [f"{METHODS[method]}: {what}" for method in shown for what in ("mean", "deviation")]
    rows = []
    for name, title in _titles().items():
        found = _methods(name)
        cells = ((_short(found[method]["eps_mean"][0]), _deviation(found[method])) for method in shown)
        rows.append([title, *(cell for pair in cells for cell in pair)])
    return table(["", *head], rows)


def _by_case(cell: Callable[[dict[str, Any]], str], methods: dict[str, str] = METHODS) -> str:
    rows = []
    for name, title in _titles().items():
        found = _methods(name)
        rows.append([title, *(cell(found[method]) if method in found else "–" for method in methods)])
    return table(["", *methods.values()], rows)


def _titles() -> dict[str, str]:
    """The titles of the cases; a dagger marks those measured on a CPU."""
    measured = _read("paper/correlation.json")["cases"]
    return {name: title + (" †" if "†" in measured[name]["title"] else "") for name, title in CASES.items()}


def _cheapest(name: str, most: float) -> tuple[str, float]:
    """The cheapest method by which neither means nor deviations are off by more, and its price; draws cost one each."""
    prices = {"draws": max(2 / (math.pi * most**2), 0.5 / most**2)}
    for method, found in _methods(name).items():
        if method in METHODS and max(found["eps_mean"][0], found["rms"][0]) <= most:
            prices[method] = _cost(name, method) or math.inf
    return min(prices.items(), key=lambda item: item[1])


def _cost(name: str, method: str) -> float | None:
    """The price with built kernels, if `front.py` has measured this network, or else the one beside the errors."""
    network = name.rpartition("-")[0]
    for measured, found in _read("benchmarks/front.json")["prices"].items():
        if measured.rpartition("-")[0] == network:
            return found.get(method)
    return _methods(name).get(method, {}).get("cost")


def _deviation(found: dict[str, Any]) -> str:
    if "sigma" not in found:
        return "none"
    ratio, error = found["sigma"][0], found["rms"][0]
    return f"×{_short(ratio)}" if error > _FAR else f"±{_short(100 * error)} %"


def _short(x: float) -> str:
    return f"{x:,.0f}" if x >= 10 else f"{x:.2g}"


def _methods(name: str) -> dict[str, Any]:
    """The measurements of a case, by method."""
    return dict(_read("paper/correlation.json")["cases"][name]["methods"])


@functools.cache
def _read(path: str) -> dict[str, Any]:
    return dict(json.loads((_RESULTS / path).read_text(encoding="utf-8")))


TABLES: dict[str, Callable[[], str]] = {
    "deviations": deviations,
    "means": means,
    "prices": prices,
    "good-enough": good_enough,
    "devices": devices,
    "trained": trained,
}
