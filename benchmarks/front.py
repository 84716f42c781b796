"""The picture and the table on the front page: what trained networks show, and at what price.

Errors are those of `momentprop paper correlation`, as `results/paper/correlation.json` has them. Prices are measured
here, in passes of the plain network: contenders take turns, each on a batch of 16.

    python benchmarks/front.py             # measure prices, draw the picture, and write the table into README.md
    python benchmarks/front.py --no-prices # with the prices that were measured before
"""

import argparse
import json
import math
import re
import statistics
from typing import TYPE_CHECKING, Any

import torch
from contenders import without_gradients
from normalization import rounded
from torch import Tensor, nn
from turns import ROOT, Clock, Run, about, take_turns

import momentprop
from momentprop import propagate
from momentprop.codegen import programs
from momentprop.data import digits
from momentprop.markdown import table
from momentprop.values import Joint, Normal
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.reproduction.correlation import small_networks
from momentprop_experiments.runs import trained_networks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NETWORKS = {
    "digits-mlp-0.25": ("MLP, 0.25", (64,)),
    "lenet-lrelu-0.01": ("LeNet, 0.01", (1, 28, 28)),
    "narrow-0.01": ("ResNet-18, 0.01", (3, 32, 32)),
    "vit-0.01": ("ViT, 0.01", (3, 32, 32)),
}
"""The cases of the table, with their titles and the shape of an input."""

METHODS = {
    "ap1": "the plain network",
    "ap2": "`covariance=False`, the paper's AP2",
    "calibrated": "the same, calibrated on 64 inputs",
    "joint": "`propagate(model, x, ...)`",
    "probes16": "the same with `probes=16`",
    "draws": "Monte Carlo at the cost of the row above",
}
"""The methods by their names in `correlation.json`."""

RESULTS, README = ROOT / "results", ROOT / "README.md"
BATCH, VARIANCE, DIGIT = 16, 0.1, 104  # the digit is that of the paper's first figure
SHOWN = (5, 9)  # its likely classes
_FAR = 0.4  # the error of a deviation, on a logarithmic scale, from which on its ratio to the truth says more
_MARKED = re.compile(r"(<!-- trained networks -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Measure, draw, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-prices", action="store_true", help="take the prices that were measured before")
    if not parser.parse_args().no_prices:
        programs.set_mode("wait")
        found: dict[str, Any] = {**about(), "prices": {}}
        for name in NETWORKS:
            found["prices"][name] = prices(name)
            (RESULTS / "benchmarks" / "front.json").write_text(json.dumps(found, indent=1) + "\n")
    for path in draw(ROOT / "build", "front", (9.2, 2.7), picture):
        if path.suffix == ".png":
            path.replace(ROOT / "docs" / path.name)
    README.write_text(_MARKED.sub(lambda mark: mark[1] + text() + "\n" + mark[2], README.read_text()))


def prices(name: str) -> dict[str, float]:
    """Return the price of every method on a network, in passes of the plain one."""
    print(f"prices: {name}", flush=True)
    model, shape = _network(name), NETWORKS[name][1]
    x, v = torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(0)), 0.01
    fitted = momentprop.calibrated(model, momentprop.calibrate(model, x, input_variance=v, samples=20))
    runs: dict[str, Run] = {
        "plain": lambda: model(x),
        "ap2": lambda: propagate(model, x, input_variance=v, covariance=False),
        "calibrated": lambda: fitted(x),
        "joint": lambda: propagate(model, x, input_variance=v).covariance,
        "probes16": lambda: propagate(model, x, input_variance=v, probes=16).covariance,
    }
    quiet = {method: without_gradients(run) for method, run in runs.items()}
    rounds = take_turns(quiet, Clock(rounds=7, seconds=20.0, warm_up=1))
    return {
        method: rounded(statistics.median(each[method] / each["plain"] for each in rounds))
        for method in runs
        if method != "plain"
    }


def _network(name: str) -> nn.Module:
    if name.startswith("digits"):
        return small_networks.load("digits-mlp").model
    return trained_networks.load({"narrow-0.01": "resnet18-narrow"}.get(name, name.rpartition("-")[0]))[0]


def text() -> str:
    """Return the table: for every network the error of the mean, the ratio of deviations, and the price."""
    cases = json.loads((RESULTS / "paper" / "correlation.json").read_text())["cases"]
    measured = json.loads((RESULTS / "benchmarks" / "front.json").read_text())["prices"]
    head = ["", *(title for title, _ in NETWORKS.values())]
    rows = [
        [what, *(_cell(method, cases[name]["methods"], measured[name]) for name in NETWORKS)]
        for method, what in METHODS.items()
    ]
    return table(head, rows)


def _cell(method: str, found: dict[str, Any], price: dict[str, float]) -> str:
    if method == "draws":  # the errors that draws of a normal unit have
        count = price["probes16"]
        return _joined(math.sqrt(2 / math.pi / count), f"±{_short(100 * math.sqrt(0.5 / count))} %", count)
    moments = found[method]
    if "sigma" not in moments:
        return _joined(moments["eps_mean"][0], "none", 1.0)
    ratio, error = moments["sigma"][0], moments["rms"][0]
    deviation = f"×{_short(ratio)}" if error > _FAR else f"±{_short(100 * error)} %"
    return _joined(moments["eps_mean"][0], deviation, price[method])


def _joined(mean: float, deviation: str, price: float) -> str:
    return f"{_short(mean)} · {deviation} · {_short(price)}"


def _short(x: float) -> str:
    return f"{x:.0f}" if x >= 10 else f"{x:.2g}"


def picture(figure: "Figure") -> None:
    """Draw a noisy digit, two of its logits, and the probabilities of both classes."""
    model, description = trained_networks.load("lenet-lrelu")
    images, _ = digits("test")
    clean = (images[DIGIT : DIGIT + 1] - description["mean"][0]) / description["std"][0]
    generator = torch.Generator().manual_seed(0)
    noisy = clean + math.sqrt(VARIANCE) * torch.randn(clean.shape, generator=generator)
    with torch.no_grad():
        draws = model(clean + math.sqrt(VARIANCE) * torch.randn(20_000, *clean.shape[1:], generator=generator))
        plain, ap2 = model(clean)[0], propagate(model, clean, input_variance=VARIANCE, covariance=False)
        joint = propagate(model, clean, input_variance=VARIANCE)
    first, *panels, last = figure.subplots(1, 2 + len(SHOWN), width_ratios=(1, 1.25, 1.25, 1.25))
    first.imshow(noisy[0, 0].tolist(), cmap="gray", interpolation="nearest")
    first.set(title="the input, with its noise")
    first.axis("off")
    for axis, unit in zip(panels, SHOWN, strict=True):
        _logit(axis, unit, draws[:, unit], plain[unit].item(), ap2[0, unit], joint[0, unit])
    probabilities = {
        "draws": draws.softmax(-1).mean(0),
        "AP1": plain.softmax(-1),
        "AP2": ap2.probabilities()[0],
        "joint": joint.probabilities()[0],
    }
    _bars(last, probabilities)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=4, loc="outside lower center", fontsize=9)


COLOURS = {"draws": "0.75", "AP1": LINES["AP1"]["color"], "AP2": "#e08e0b", "joint": "#1f4e9c"}


def _logit(axis: "Axes", unit: int, draws: Tensor, plain: float, ap2: Normal, joint: Joint) -> None:
    axis.hist(draws.tolist(), 60, density=True, color=COLOURS["draws"], label="20,000 draws")
    axis.axvline(plain, **LINES["AP1"], label="AP1: the plain network")
    x = torch.linspace(draws.min().item(), draws.max().item(), 200)
    for name, value, label, dashes in (("AP2", ap2, "AP2: one pass", "-."), ("joint", joint, "joint", "-")):
        bell = torch.exp(torch.distributions.Normal(value.loc, value.stddev).log_prob(x))
        axis.plot(x, bell, color=COLOURS[name], linestyle=dashes, linewidth=2, label=label)
    axis.set(title=f'the output for "{unit}"', yticks=())
    axis.spines["left"].set_visible(False)
    axis.grid(visible=False)


def _bars(axis: "Axes", probabilities: dict[str, Tensor]) -> None:
    for k, (name, found) in enumerate(probabilities.items()):
        places = [i + 0.2 * (k - 1.5) for i in range(len(SHOWN))]
        axis.bar(places, [found[unit].item() for unit in SHOWN], 0.18, color=COLOURS[name])
    axis.set_xticks(range(len(SHOWN)), [f'"{unit}"' for unit in SHOWN])
    axis.set(title="class probabilities", ylim=(0, 1))
    axis.grid(axis="x", visible=False)


if __name__ == "__main__":
    main()
