"""Draw the documentation's figures into `docs/figures`: `python tools/figures.py`, for all or the named ones.

All come from seeds, the networks in `results/networks`, the numbers in `results/paper`, and formulas without built
kernels, so a second call draws the same. `benchmarks/front.py` draws the front page's picture, and `momentprop paper`
the figures of the evidence.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop import Fitted, Logistic, Normal, propagate
from momentprop.data import digits
from momentprop_experiments.drawing import LINES, draw, logarithmic
from momentprop_experiments.runs import trained_networks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "figures"
DRAWS, AP2, JOINT, CALIBRATED = "0.75", "#e08e0b", "#1f4e9c", "#2a9d5c"


def main(names: list[str]) -> None:
    """Draw the figures of these names, or all."""
    OUT.mkdir(exist_ok=True)
    momentprop.built_kernels.set_mode("eager")
    for name in names or FIGURES:
        size, plot = FIGURES[name]
        _ = torch.manual_seed(0)
        for path in draw(ROOT / "build" / "figures", name, size, plot):
            if path.suffix == ".png":
                path.replace(OUT / path.name)
        print(OUT / f"{name}.png", flush=True)


def views(figure: "Figure") -> None:
    """One input under noise through a small network: as a number, as two moments, as draws."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).requires_grad_(False)
    x = torch.linspace(-3, 3, 200)[:, None]
    for parameter, scale in zip(model.parameters(), (2.0, 1.0, 0.4, 0.0), strict=True):
        parameter.copy_(scale * torch.randn(parameter.shape))
    mean, deviation = torch.tensor([[0.2]]), 0.6
    many = model(mean + deviation * torch.randn(20_000, 1))[:, 0]
    ap2 = propagate(model, mean, input_std=deviation)
    first, *panels = figure.subplots(1, 4, width_ratios=(1.3, 1, 1, 1))
    first.plot(x, model(x), color="black")
    density = torch.exp(-((x - mean) ** 2) / (2 * deviation**2))
    first.fill_between(x[:, 0], -2.2, -2.2 + density[:, 0], color=DRAWS, linewidth=0)
    first.set(title="a network f, and noise on its input", xlabel="input", ylabel="output", ylim=(-2.2, 2.2))
    titles = ("AP1: one number", "AP2: mean and deviation", "draws: their histogram")
    for axis, title in zip(panels, titles, strict=True):
        axis.set(title=title, ylim=(-2.2, 2.2), xticks=(), xlim=(0, 1.4))
        axis.axhline(many.mean(), color="0.5", linewidth=0.8)
        axis.spines["bottom"].set_visible(False)
    panels[0].axhline(model(mean).item(), **LINES["AP1"])
    panels[0].text(0.1, model(mean).item() - 0.3, "f(mean of the input)", color=LINES["AP1"]["color"])
    y = torch.linspace(-2.2, 2.2, 300)
    bell = torch.distributions.Normal(ap2.loc.item(), ap2.stddev.item()).log_prob(y).exp()
    panels[1].fill_betweenx(y, 0, bell, color=AP2, alpha=0.35, linewidth=0)
    panels[1].errorbar([1.1], ap2.loc.flatten(), ap2.stddev.flatten(), fmt="o", color=AP2, capsize=4)
    panels[2].hist(many.tolist(), 60, density=True, orientation="horizontal", color=DRAWS)
    panels[2].errorbar([1.1], many.mean(), many.std(), fmt="o", color="0.3", capsize=4)


def moments(figure: "Figure") -> None:
    """A normal input through a rectifier, and the normal distribution with the same moments."""
    x = Normal(torch.tensor(0.4, dtype=torch.float64), 1.0)
    y = torch.relu(x)
    left, right = figure.subplots(1, 2)
    z = torch.linspace(-3, 4, 500, dtype=torch.float64)
    left.fill_between(z, 0, _bell(z, x), color=DRAWS, linewidth=0, label="the input, normal")
    left.plot(z, z.clamp(min=0) / 4, color="black", label="ReLU (a quarter of its height)")
    left.set(title="what goes in", xlabel="x", ylim=(0, 0.9), yticks=())
    above = z[z > 0]
    right.fill_between(above, 0, _bell(above, x), color=DRAWS, linewidth=0, label="the output, as it is")
    right.annotate("", (0, 0.62), (0, 0), arrowprops={"arrowstyle": "-|>", "color": "0.55", "lw": 2.5})
    right.text(-0.15, 0.55, f"{0.5 * torch.erfc(torch.tensor(0.4 / 2**0.5)):.0%} at zero", color="0.4", ha="right")
    right.plot(z, _bell(z, y), color=AP2, linewidth=2.2, label="the normal with its mean and variance")
    right.vlines(y.loc, 0, _bell(y.loc, y), color=AP2, linewidth=0.9, linestyle=":")
    right.set(title="what comes out, and what is kept of it", xlabel="max(0, x)", ylim=(0, 0.9), yticks=())
    for axis, place in ((left, "upper left"), (right, "upper right")):
        axis.legend(loc=place)
        axis.grid(visible=False)


def independence(figure: "Figure") -> None:
    """Copies that are treated as independent, and deviations layer by layer in a trained network."""
    left, right = figure.subplots(1, 2)
    counts = torch.arange(1, 33)
    left.plot(counts, counts, color="black", label="n copies of one noise: the truth")
    left.plot(counts, counts.sqrt(), color=AP2, linestyle="-.", label="n independent noises: AP2")
    left.set(title="the deviation of a sum", xlabel="n", ylabel="deviation")
    model, images = _lenet(64)
    layers, ratios = _ratios(model, images, {})
    right.axhline(1, color="black", linewidth=1)
    right.plot(range(len(layers)), ratios, "o-.", color=AP2, label="AP2")
    right.set(title="a trained LeNet, pixel noise 0.1", ylabel="AP2's deviation / that of draws", ylim=(0, 1.15))
    _name_layers(right, layers)
    left.legend()
    right.legend(loc="lower left")


def corrections(figure: "Figure") -> None:
    """Deviations after every layer, as they are and corrected."""
    model, images = _lenet(128)
    calibration = momentprop.calibrate(model, images[64:], input_variance=0.1, samples=300)
    left, right = figure.subplots(1, 2)
    left.axhline(1, color="black", linewidth=1)
    for name, options, colour, marks in (
        ("AP2", {}, AP2, "o-."),
        ("calibrated", {"calibration": calibration}, CALIBRATED, "s-"),
    ):
        layers, ratios = _ratios(model, images[:64], options)
        left.plot(range(len(layers)), ratios, marks, color=colour, label=name)
    left.set(title="LeNet, layer by layer", ylabel="deviation / that of draws", ylim=(0, 1.15))
    _name_layers(left, layers)
    left.legend(loc="lower left")
    cases = _read("correlation")["cases"]
    names = {"lenet-lrelu-0.1": "LeNet", "cifar-lrelu-0.1": "CIFAR net", "narrow-0.01": "ResNet-18", "vit-0.1": "ViT"}
    for k, (method, colour) in enumerate((("ap2", AP2), ("calibrated", CALIBRATED))):
        found = [cases[name]["methods"][method]["sigma"][0] for name in names]
        right.bar([i + 0.36 * (k - 0.5) for i in range(len(names))], found, 0.34, color=colour)
    right.axhline(1, color="black", linewidth=1)
    right.set_xticks(range(len(names)), list(names.values()))
    right.set(title="at the output of trained networks")
    right.grid(axis="x", visible=False)


def joint(figure: "Figure") -> None:
    """Two outputs of a trained network under noise: draws, independent units, followed correlations."""
    model, images = _lenet(24)
    x, variance = images[10:11], 0.1
    many = model(x + variance**0.5 * torch.randn(4000, *x.shape[1:]))
    ap2 = propagate(model, x, input_variance=variance, covariance=False)
    followed = propagate(model, x, input_variance=variance)
    correlation = followed.correlation[0].abs().triu(1)
    a, b = divmod(int(correlation.argmax()), 10)
    independent = torch.diag(ap2.variance[0, [a, b]])
    shared = followed.covariance[0][[a, b]][:, [a, b]]
    pictures = figure.subplots(1, 2)
    for axis, covariance, colour, title in (
        (pictures[0], independent, AP2, "AP2: units apart"),
        (pictures[1], shared, JOINT, "joint: correlations followed"),
    ):
        axis.scatter(many[:, a], many[:, b], s=2, color=DRAWS, linewidths=0, label="draws")
        for size in (1, 2):
            points = _ellipse(ap2.loc[0, [a, b]], covariance, size)
            axis.plot(*points, color=colour, label="one and two deviations" if size == 1 else None)
        axis.set(title=title, xlabel=f'the output for "{a}"', ylabel=f'the output for "{b}"')
        axis.legend(loc="upper left", markerscale=4)


def exactness(figure: "Figure") -> None:
    """How far the deviation of a rectified unit is off, by the type of the value."""
    a = torch.linspace(-3, 3, 301, dtype=torch.float64)
    exact = torch.relu(Normal(a, 1.0)).stddev
    left, right = figure.subplots(1, 2)
    for name, value, colour, dashes in (
        ("Fitted, the paper's code", Fitted, AP2, "-."),
        ("Logistic", Logistic, LINES["MacKay"]["color"], ":"),
        ("Normal, the default", Normal, JOINT, "-"),
    ):
        found = torch.relu(value(a, torch.ones_like(a))).stddev
        left.plot(a, found / exact, color=colour, linestyle=dashes, label=name)
    left.set(title="ReLU of a normal unit", xlabel="mean / deviation of the input", ylabel="deviation / the true one")
    left.set_ylim(0.5, 2)
    s = torch.linspace(0.1, 6, 60, dtype=torch.float64)
    unit = {method: momentprop.nn.LogisticBernoulli(method) for method in ("mackay", "ap2a", "ap2b", "pea", "exact")}
    names = {"mackay": "MacKay", "ap2a": "AP2a", "ap2b": "AP2b", "pea": "PEA", "exact": "AP2 (default)"}
    truth = _mean_of_sigmoid(1.0, s)
    for method, layer in unit.items():
        off = (layer(Normal(torch.ones_like(s), s.square())).loc - truth).abs().clamp(min=1e-9)
        right.plot(s, off, label=names[method], **{**LINES[names[method]], "linewidth": 1.6})
    right.set(title="logistic unit at mean 1: error of its probability", xlabel="deviation of the input")
    logarithmic(right, [1e-8, 1e-6, 1e-4, 1e-2])
    for axis in (left, right):
        axis.legend()


def depth(figure: "Figure") -> None:
    """The deviations of trained networks by three methods, from shallow to deep."""
    cases = _read("correlation")["cases"]
    names = {
        "digits-mlp-0.25": "MLP\n2 hidden",
        "lenet-lrelu-0.01": "LeNet\n4 conv",
        "cifar-lrelu-0.01": "CIFAR net\n9 conv",
        "narrow-0.01": "ResNet-18\n20 conv",
        "vit-0.01": "ViT\n6 blocks",
    }
    axis = figure.subplots()
    for k, (method, title, colour) in enumerate(
        (("ap2", "AP2", AP2), ("calibrated", "AP2, calibrated", CALIBRATED), ("joint", "joint", JOINT))
    ):
        found = [cases[name]["methods"][method]["sigma"][0] for name in names]
        places = [i + 0.26 * (k - 1) for i in range(len(names))]
        axis.bar(places, found, 0.24, color=colour, label=title)
        for place, ratio in zip(places, found, strict=True):
            axis.text(place, max(ratio, 0.0105) * 1.06, f"{ratio:.2g}", ha="center", fontsize=7)
    axis.axhline(1, color="black", linewidth=1)
    axis.set_xticks(range(len(names)), list(names.values()))
    logarithmic(axis, [0.01, 0.03, 0.1, 0.3, 1])
    axis.set(ylim=(0.01, 3), ylabel="deviation / the true one")
    axis.grid(axis="x", visible=False)
    axis.legend(loc="upper center", ncols=3)


def missing(figure: "Figure") -> None:
    """Digits whose lower half is not observed, and the class probabilities."""
    model, images = _lenet(60)
    hidden = torch.zeros(28, 28, dtype=torch.bool)
    hidden[14:] = True
    guess, covariance = _guess(images, hidden.flatten())
    told = propagate(model, guess, input_covariance=covariance).probabilities()
    filled = model(guess).softmax(-1)
    doubtful = (filled.amax(-1) - told.amax(-1)).topk(2).indices.tolist()
    for axes, i in zip(figure.subplots(2, 2, width_ratios=(1, 3)), doubtful, strict=True):
        axes[0].set_facecolor("0.8")
        axes[0].imshow(images[i, 0].masked_fill(hidden, float("nan")).tolist(), cmap="gray")
        axes[0].set(xticks=(), yticks=())
        axes[0].grid(visible=False)
        for k, (found, colour, name) in enumerate(
            ((filled[i], LINES["AP1"]["color"], "filled in"), (told[i], JOINT, "known to be uncertain"))
        ):
            axes[1].bar([c + 0.4 * (k - 0.5) for c in range(10)], found.tolist(), 0.38, color=colour, label=name)
        axes[1].set(ylim=(0, 1.05), xticks=range(10), ylabel="probability")
        axes[1].grid(axis="x", visible=False)
        axes[1].legend()


def _guess(images: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """What the seen pixels say about the hidden ones, by the normal distribution of the training images."""
    _, about = trained_networks.load("lenet-lrelu")
    train = ((digits("train").images - about["mean"][0]) / about["std"][0]).flatten(1)
    mean, covariance = train.mean(0), torch.cov(train.T) + 0.02 * torch.eye(784)
    weights = torch.linalg.solve(covariance[~hidden][:, ~hidden], covariance[~hidden][:, hidden])
    guess, left = images.flatten(1).clone(), torch.zeros(784, 784)
    guess[:, hidden] = mean[hidden] + (guess - mean)[:, ~hidden] @ weights
    left[hidden.nonzero(), hidden.nonzero().T] = (
        covariance[hidden][:, hidden] - covariance[hidden][:, ~hidden] @ weights
    )
    return guess.view_as(images), left


def _lenet(count: int) -> tuple[nn.Module, Tensor]:
    model, about = trained_networks.load("lenet-lrelu")
    images = digits("test").images[:count]
    return model.requires_grad_(False), (images - about["mean"][0]) / about["std"][0]


def _ratios(model: nn.Module, images: Tensor, options: dict[str, Any]) -> tuple[list[str], list[float]]:
    """The geometric mean of the ratio of AP2's deviations to those of draws, at every layer with weights."""
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    _, found = propagate(model, images, input_variance=0.1, covariance=False, record=layers, **options)
    _, drawn = propagate(model, images, method="sample", samples=1000, seed=0, input_variance=0.1, record=layers)
    return layers, [(found[name].stddev / drawn[name].stddev).log().mean().exp().item() for name in layers]


def _name_layers(axis: "Axes", layers: list[str]) -> None:
    axis.set_xticks(range(len(layers)), layers)
    axis.set_xlabel("layer")


def _bell(x: Tensor, value: Normal) -> Tensor:
    return torch.distributions.Normal(value.loc, value.stddev).log_prob(x).exp()


def _ellipse(mean: Tensor, covariance: Tensor, size: float) -> Tensor:
    angle = torch.linspace(0, 2 * torch.pi, 100)
    circle = torch.stack([angle.cos(), angle.sin()])
    return mean[:, None] + size * torch.linalg.cholesky(covariance) @ circle


def _mean_of_sigmoid(mean: float, deviation: Tensor) -> Tensor:
    """The expectation by a fine sum, as a truth to compare with."""
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    weights = torch.exp(-z.square() / 2) / (torch.exp(-z.square() / 2)).sum()
    return (torch.sigmoid(mean + deviation[:, None] * z) * weights).sum(-1)


def _read(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "results" / "paper" / f"{name}.json").read_text(encoding="utf-8")))


FIGURES: dict[str, tuple[tuple[float, float], Callable[["Figure"], None]]] = {
    "views": ((9.2, 2.6), views),
    "moments": ((8.6, 2.6), moments),
    "independence": ((8.6, 2.8), independence),
    "joint": ((8.6, 3.6), joint),
    "corrections": ((8.6, 2.8), corrections),
    "exactness": ((8.6, 2.9), exactness),
    "depth": ((8.6, 3.0), depth),
    "missing": ((7.2, 3.4), missing),
}
"""Size and drawing of every figure, by its name."""

if __name__ == "__main__":
    main(sys.argv[1:])
