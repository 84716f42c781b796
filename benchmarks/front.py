"""The picture and the table on the front page: errors and prices in trained networks.

Errors come from `momentprop paper correlation`, from `results/paper/correlation.json`. Prices are measured here, in
passes of the plain network: contenders take turns, each on a batch of 16.

    python benchmarks/front.py             # measure prices, draw the picture, and write the table into README.md
    python benchmarks/front.py --no-prices # with the prices that were measured before
"""

import argparse
import json
import math
import re
import statistics
from dataclasses import dataclass
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
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.provenance import start
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
    "ap1": "the plain network (AP1)",
    "ap2": "AP2: `covariance=False`",
    "calibrated": "AP2, calibrated on 64 inputs",
    "joint": "joint: `propagate(model, x, ...)`",
    "probes16": "joint with `probes=16`",
    "draws": "Monte Carlo at the cost of the row above",
}
"""The methods by their names in `correlation.json`."""

RESULTS, README = ROOT / "results", ROOT / "README.md"
BATCH, VARIANCE, DIGIT = 16, 0.1, 104  # the digit is that of the paper's first figure
SHOWN = (5, 9)  # its likely classes
_FAR = 0.4  # the error of a deviation, on a logarithmic scale, above which its ratio to the truth says more
_MARKED = re.compile(r"(<!-- trained networks -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Measure, draw, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-prices", action="store_true", help="use the prices that were measured before")
    if not parser.parse_args().no_prices:
        programs.set_mode("wait")
        made, found = start(), {**about(), "prices": {}}
        for name in NETWORKS:
            found["prices"][name] = prices(name)
            found["made"] = made("cpu")
            (RESULTS / "benchmarks" / "front.json").write_text(json.dumps(found, indent=1) + "\n")
    for path in draw(ROOT / "build", "front", (9.2, 2.6), picture):
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
    """Return the table: for every network the ratio of deviations, the error of the mean, and the price."""
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
        return _lines(f"±{_short(100 * math.sqrt(0.5 / count))} %", math.sqrt(2 / math.pi / count), count)
    moments = found[method]
    if "sigma" not in moments:
        return _lines("none", moments["eps_mean"][0], 1.0)
    ratio, error = moments["sigma"][0], moments["rms"][0]
    deviation = f"×{_short(ratio)}" if error > _FAR else f"±{_short(100 * error)} %"
    return _lines(deviation, moments["eps_mean"][0], price[method])


def _lines(deviation: str, mean: float, price: float) -> str:
    passes = "pass" if price == 1 else "passes"
    return f"σ {deviation}<br>mean {_short(mean)}<br>{_short(price)} {passes}"


def _short(x: float) -> str:
    return f"{x:.0f}" if x >= 10 else f"{x:.2g}"


@dataclass(frozen=True)
class Told:
    """What one method says about a digit: by how much the second class leads, and the probability of each."""

    lead: float
    stddev: float | None
    probabilities: tuple[float, ...]


def picture(figure: "Figure") -> None:
    """Draw a noisy digit, by how much one class leads the other under its noise, and the probabilities of both."""
    model, description = trained_networks.load("lenet-lrelu")
    images, _ = digits("test")
    clean = (images[DIGIT : DIGIT + 1] - description["mean"][0]) / description["std"][0]
    generator = torch.Generator().manual_seed(0)
    noisy = clean + math.sqrt(VARIANCE) * torch.randn(clean.shape, generator=generator)
    with torch.no_grad():
        draws = model(clean + math.sqrt(VARIANCE) * torch.randn(20_000, *clean.shape[1:], generator=generator))
        plain, ap2 = model(clean)[0], propagate(model, clean, input_variance=VARIANCE, covariance=False)
        joint = propagate(model, clean, input_variance=VARIANCE)
    low, high = SHOWN
    v, c = ap2.variance[0], joint.covariance[0]
    told = {
        "draws": _told(draws.mean(0), None, draws.softmax(-1).mean(0)),
        "AP1": _told(plain, None, plain.softmax(-1)),
        "AP2": _told(ap2.loc[0], v[low] + v[high], ap2.probabilities()[0]),
        "joint": _told(joint.loc[0], c[low, low] + c[high, high] - 2 * c[low, high], joint.probabilities()[0]),
    }
    first, middle, last = figure.subplots(1, 3, width_ratios=(1, 2.1, 1.7))
    first.imshow(noisy[0, 0].tolist(), cmap="gray", interpolation="nearest")
    first.set(title="a digit with noise")
    first.axis("off")
    _leads(middle, draws[:, high] - draws[:, low], told)
    _shares(last, told)


def _told(logits: Tensor, variance: Tensor | None, probabilities: Tensor) -> Told:
    low, high = SHOWN
    stddev = None if variance is None else variance.sqrt().item()
    shares = tuple(probabilities[unit].item() for unit in SHOWN)
    return Told((logits[high] - logits[low]).item(), stddev, shares)


COLOURS = {"draws": "0.45", "AP1": LINES["AP1"]["color"], "AP2": "#c77700", "joint": "#1f4e9c"}
NAMES = {"draws": "20,000 draws", "AP1": "plain network (AP1)", "AP2": "AP2, one pass", "joint": "joint"}
SHADES = ("0.62", "0.85")  # of the classes


def _leads(axis: "Axes", leads: Tensor, told: dict[str, Told]) -> None:
    """The histogram of the leads, split where the winner changes, and what each method says about them."""
    low, high = SHOWN
    lowest, highest = leads.min().item(), leads.max().item()
    step = highest / 35
    edges = [i * step for i in range(math.floor(lowest / step), 36)]
    for part, shade in zip((leads[leads < 0], leads[leads >= 0]), SHADES, strict=True):
        axis.hist(part.tolist(), edges, weights=[1 / (len(leads) * step)] * len(part), color=shade)
    x = torch.linspace(lowest, highest, 200)
    for name in ("AP2", "joint"):
        lead, stddev = told[name].lead, told[name].stddev
        assert stddev is not None
        bell = torch.exp(torch.distributions.Normal(lead, stddev).log_prob(x))
        axis.plot(x, bell, color=COLOURS[name], linestyle="-." if name == "AP2" else "-", linewidth=2)
    top = axis.get_ylim()[1]
    axis.axvline(told["AP1"].lead, **LINES["AP1"])
    _label(axis, "AP1", told["AP1"].lead, 0.88 * top, "left")
    _label(axis, "AP2", told["AP2"].lead - (told["AP2"].stddev or 0.0), 0.65 * top, "right")
    _label(axis, "joint", told["joint"].lead + 1.3 * (told["joint"].stddev or 0.0), 0.22 * top, "left")
    for unit, x in ((low, 0.75 * lowest), (high, 0.75 * highest)):
        axis.text(x, 0.12 * top, f"reads {unit}", color=COLOURS["draws"], fontsize=9, ha="center")
    axis.set(title="which output wins, and by how much", yticks=(), xlabel=f'output "{high}" minus output "{low}"')
    axis.spines["left"].set_visible(False)
    axis.grid(visible=False)


def _label(axis: "Axes", name: str, x: float, y: float, side: str) -> None:
    away = (5 if side == "left" else -5, 0)
    written: dict[str, Any] = {"color": COLOURS[name], "ha": side, "fontsize": 9, "textcoords": "offset points"}
    axis.annotate(NAMES[name], (x, y), away, **written)


def _shares(axis: "Axes", told: dict[str, Told]) -> None:
    """A bar for each method, with the probabilities of both classes."""
    rows = range(len(told), 0, -1)
    for row, each in zip(rows, told.values(), strict=True):
        left = 0.0
        for unit, share, shade in zip(SHOWN, each.probabilities, SHADES, strict=True):
            axis.barh(row, share, 0.72, left, color=shade)
            if share > 0.1:
                axis.text(left + share / 2, row, f'"{unit}" {100 * share:.0f} %', ha="center", va="center", fontsize=9)
            left += share
    axis.set_yticks(list(rows), [NAMES[name] for name in told])
    for label, name in zip(axis.get_yticklabels(), told, strict=True):
        label.set_color(COLOURS[name])
    axis.set(title="how likely is each digit?", xlim=(0, 1), xticks=())
    axis.tick_params(length=0)
    axis.grid(visible=False)
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)


if __name__ == "__main__":
    main()
