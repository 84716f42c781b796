"""How the times of AP2 and of the plain network grow: with depth, width, batch, classes, tokens and image size."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from contenders import VARIANCE, Scene, forward
from normalization import record
from speed_groups import Case, Setting
from torch import Tensor, nn
from turns import about, ratio, take_turns

from momentprop.markdown import table
from momentprop_experiments import drawing
from momentprop_experiments.networks import cifar, lenet
from momentprop_experiments.provenance import start

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "speed-scale"

_NOTES = (
    "The table has the median time of a forward pass without gradients, by AP2 and of the plain network, which take "
    "turns. The size of one thing grows; a sweep ends where a pass no longer runs."
)


def _mlp(depth: int, width: int) -> nn.Module:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers)


def _encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 1, 64, activation="gelu", batch_first=True)


def _classifier(classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, classes), nn.Softmax(-1))


Made = tuple[nn.Module, Tensor]
Sweep = tuple[str, tuple[int, ...], Callable[[int], Made]]

SWEEPS: dict[str, Sweep] = {
    "depth": (
        "layers of an MLP of width 64, batch 32",
        (1, 4, 16, 64),
        lambda size: (_mlp(size, 64), torch.randn(32, 64)),
    ),
    "width": (
        "width of an MLP of 3 layers, batch 32",
        (16, 64, 256, 1024, 4096),
        lambda size: (_mlp(3, size), torch.randn(32, size)),
    ),
    "batch": (
        "images in a batch, LeNet",
        (1, 8, 64, 512, 4096),
        lambda size: (lenet(), torch.randn(size, 1, 28, 28)),
    ),
    "classes": (
        "classes of a linear layer of 64 features with softmax, batch 32",
        (10, 100, 1000, 10000, 50000),
        lambda size: (_classifier(size), torch.randn(32, 64)),
    ),
    "tokens": (
        "tokens of an encoder layer of width 32, one head",
        (64, 256, 1024, 4096),
        lambda size: (_encoder_layer(), torch.randn(1, size, 32)),
    ),
    "image": (
        "side of an image, CIFAR network",
        (32, 64, 128, 256),
        lambda size: (cifar(), torch.randn(1, 3, size, size)),
    ),
}
"""What grows: its title, its sizes, and how to make a network and its input."""


def run(given: Setting, options: argparse.Namespace) -> str:
    """Measure the chosen sweeps, save each as soon as it is measured, draw the figure and return the table."""
    for name in () if options.draw else options.only:
        print(name, flush=True)
        made = start()
        record(NAME, {name: sweep(name, given)}, options, markdown, made, about())
    data = json.loads((options.out / f"{NAME}.json").read_text())
    try:
        drawing.draw(options.out, NAME, (9.0, 5.2), lambda figure: plot(figure, data))
    except ImportError as error:
        print(f"{error}; then `--scale --draw` draws what is measured")
    return markdown(data)


def sweep(name: str, given: Setting) -> dict[str, Case]:
    """Measure the sizes of a sweep, the smallest first, until one fails."""
    _, sizes, make = SWEEPS[name]
    found: dict[str, Case] = {}
    for size in sizes[:2] if given.quick else sizes:
        torch.manual_seed(0)
        model, x = (part.to(given.device) for part in make(size))
        runs = forward(Scene(model.eval(), x, torch.full_like(x, VARIANCE)))
        try:
            rounds = take_turns({one: runs[one] for one in ("AP2", "plain")}, given.clock)
        except RuntimeError as error:  # out of memory
            print(f"{name} {size}: {error}")
            break
        found[str(size)] = ratio(rounds, "AP2", "plain")
    return found


def markdown(data: dict[str, Any]) -> str:
    """Return the table of all devices."""
    rows = [
        [device, SWEEPS[name][0], size, *(f"{x:.3g} ms" for x in case["milliseconds"]), f"{case['measured'][1]:.3g}"]
        for device, found in data.items()
        for name, cases in found["cases"].items()
        for size, case in cases.items()
    ]
    head = ("device", "what grows", "size", "AP2", "plain", "ratio")
    return "\n\n".join(["# How times grow", _NOTES, table(head, rows)])


def plot(figure: "Figure", data: dict[str, Any]) -> None:
    """Draw a panel for every sweep: AP2 as a line, the plain network dashed, a colour for each device."""
    panels = figure.subplots(2, 3).flat
    for axis, (name, (title, _, _)) in zip(panels, SWEEPS.items(), strict=True):
        for (device, found), color in zip(data.items(), ("#1f4e9c", "#c1272d", "#2a9d5c", "0.3"), strict=False):
            _lines(axis, found["cases"].get(name, {}), device, color)
        axis.set(xscale="log", yscale="log", title=name, xlabel=title)
        sizes = sorted({int(size) for found in data.values() for size in found["cases"].get(name, {})})
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes], size=7)
        axis.minorticks_off()
        axis.xaxis.label.set_size(7)
    figure.supylabel("milliseconds", size=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


def _lines(axis: "Axes", cases: dict[str, Case], device: str, color: str) -> None:
    sizes = [int(size) for size in cases]
    for number, (label, style) in enumerate((("AP2", "-o"), ("plain", "--s"))):
        times = [case["milliseconds"][number] for case in cases.values()]
        axis.plot(sizes, times, style, color=color, markersize=3, label=f"{label}, {device}")
