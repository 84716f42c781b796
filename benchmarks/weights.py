"""Random weights: classifiers with a diagonal Laplace posterior, with predictions by several methods.

A perceptron and a convolutional network are trained on some images of MNIST. Moments and class probabilities are
compared with many draws of the weights, and the probabilities are put to use: to leave out doubtful images, and to tell
garments (Fashion-MNIST) from digits.

    momentprop data get mnist fashion-mnist
    python benchmarks/weights.py            # some minutes
    python benchmarks/weights.py --quick    # digits from the package, few draws: that it runs
    python benchmarks/weights.py --draw     # the figure again, from what is measured

The row of laplace-torch needs the package installed. The numbers go to `results/benchmarks/weights.json`,
the tables to `weights.md` and the figure to `weights.svg`.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from normalization import rounded
from torch import Tensor
from turns import QUICK, ROOT, Clock, about, milliseconds, take_turns
from weight_posteriors import (
    CONTENDERS,
    Answer,
    Posterior,
    Solver,
    best_posterior,
    convolutional,
    draws,
    entropy,
    laplace_posterior,
    perceptron,
    trained,
)

from momentprop import data
from momentprop.markdown import table
from momentprop_experiments import drawing
from momentprop_experiments.provenance import start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORKS = {"perceptron": perceptron, "convolutional network": convolutional}
TRAINING, HELD_OUT, TEST = 2000, 500, 5000
LINES = {
    "softmax": {"color": "0.5", "linestyle": "--"},
    "30 draws": {"color": "#e08e0b", "linestyle": ":"},
    "100 draws": {"color": "#c1272d", "linestyle": "-."},
    "AP2": {"color": "#2a9d5c", "linestyle": (0, (5, 2))},
    "joint": {"color": "#1f4e9c", "linestyle": "-", "linewidth": 2.2},
}


def main() -> None:
    """Measure all networks, and write the numbers, the tables and the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits from the package, few draws")
    parser.add_argument("--draw", action="store_true", help="draw what is measured, and measure nothing")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or ROOT / ("build" if options.quick else "results") / "benchmarks"
    path = out / "weights.json"
    if not options.draw:
        made = start()
        found = {name: measure(name, options.quick) for name in NETWORKS}
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**about(), "networks": found, "made": made("cpu")}, indent=1) + "\n")
    measured = json.loads(path.read_text())
    path.with_suffix(".md").write_text(markdown(measured), encoding="utf-8")
    print(markdown(measured))
    drawing.draw(out, "weights", (8.0, 6.4), lambda figure: plot(figure, measured))


@torch.no_grad()
def measure(network: str, quick: bool) -> dict[str, Any]:
    """Return all figures of one network."""
    images = Images(quick)
    model = posterior_of(network, images, quick)
    solvers = made(model)
    x = images.digits[0][: 20 if quick else 200]
    truth = draws(200 if quick else 5000, model, seed=1)(x)
    other = draws(200 if quick else 5000, model, seed=2)(x)
    clock = QUICK if quick else Clock(rounds=5, seconds=15.0, warm_up=1)
    moments = take_turns({name: (lambda solve=solve: _loc(solve(x))) for name, solve in solvers.items()}, clock)
    classes = take_turns({name: (lambda solve=solve: solve(x).probabilities) for name, solve in solvers.items()}, clock)
    found: dict[str, Any] = {}
    for name, solve in solvers.items():
        found[name] = errors(solve(x), truth)
        found[name] |= {"moments": milliseconds(moments, name), "classes": milliseconds(classes, name)}
        found[name] |= used(solve, images)
        print(network, name, {key: each for key, each in found[name].items() if not isinstance(each, list)}, flush=True)
    return {
        "precision": model.precision,
        "floor": errors(other, truth),
        "methods": found,
        "images": len(images.digits[0]),
        "at more noise": at_more_noise(model, images.training[0], x, 200 if quick else 3000),
    }


def at_more_noise(posterior: Posterior, training: Tensor, x: Tensor, count: int) -> dict[str, Any]:
    """Return the errors of moments at a tenth of the prior precision, to see how far the methods go."""
    wide = laplace_posterior(posterior.model, training, posterior.precision / 10)
    truth = draws(count, wide, seed=1)(x)
    names = ("AP2", "joint", "joint, 16 probes", "delta method", "100 draws")
    found = {name: errors(CONTENDERS[name](wide)(x), truth) for name in names}
    return {**found, f"other {count:,} draws": errors(draws(count, wide, seed=2)(x), truth)}


def _loc(answer: Answer) -> Any:
    """Compute mean and variance, if there are any."""
    return None if answer.logits is None else answer.variance


class Images:
    """The data for training, for holding out, and for prediction: digits and garments."""

    def __init__(self, quick: bool) -> None:
        train, test = (data.digits(split) for split in ("train", "test"))
        self.training = train.images[:200], train.labels[:200]
        self.held_out = train.images[-100:], train.labels[-100:]
        self.digits, self.garments = (test.images[:60], test.labels[:60]), 1 - test.images[:60]
        if not quick:
            mnist, fashion = data.load("mnist"), data.load("fashion-mnist")
            self.training = mnist.train.batch(slice(TRAINING))
            self.held_out = mnist.train.batch(slice(TRAINING, TRAINING + HELD_OUT))
            self.digits = mnist.test.batch(slice(TEST))
            self.garments = fashion.test.batch(slice(TEST))[0]


def posterior_of(network: str, images: Images, quick: bool) -> Posterior:
    """Return a trained network with its posterior."""
    with torch.enable_grad():
        model = trained(NETWORKS[network], *images.training, epochs=2 if quick else 20)
    return best_posterior(model, images.training[0], images.held_out, may_end=quick)


def made(posterior: Posterior) -> dict[str, Solver]:
    """Make all contenders, except missing packages."""
    found: dict[str, Solver] = {}
    for name, make in CONTENDERS.items():
        try:
            found[name] = make(posterior)
        except ImportError as error:
            print(f"{name} is left out: {error}", flush=True)
    return found


def errors(answer: Answer, truth: Answer) -> dict[str, float]:
    """Return the errors of moments and of class probabilities."""
    p = truth.probabilities.double()
    log_q = answer.probabilities.double().clamp(min=1e-30).log()
    found = {"kl": rounded(float((torch.special.xlogy(p, p) - p * log_q).sum(-1).mean()))}
    if answer.logits is not None or "loc" in vars(answer):
        deviation = truth.variance.sqrt()
        ratio = (answer.variance.clamp(min=1e-20).sqrt() / deviation).log()
        found["eps_mean"] = rounded(float((answer.loc - truth.loc).abs().mean() / deviation.mean()))
        found["sigma"], found["rms"] = rounded(float(ratio.mean().exp())), rounded(float(ratio.square().mean().sqrt()))
    return found


def used(solve: Solver, images: Images) -> dict[str, Any]:
    """Return what the probabilities achieve: risk by coverage, and garments told from digits."""
    digits, garments = (joined([solve(some) for some in x.split(500)]) for x in (images.digits[0], images.garments))
    p, labels = digits.probabilities, images.digits[1]
    wrong = (p.argmax(-1) != labels).double()
    order = p.max(-1).values.argsort(descending=True)
    risk = wrong[order].cumsum(0) / torch.arange(1, len(wrong) + 1)
    scores = [torch.cat([entropy(each.probabilities) for each in (digits, garments)]),
              torch.cat([digits.information, garments.information])]  # fmt: skip
    curves = [operating(score, len(wrong)) for score in scores]
    at = torch.linspace(0, len(risk) - 1, 101).long()
    return {
        "error": rounded(float(wrong.mean())),
        "nll": rounded(float(F.nll_loss(p.clamp(min=1e-30).log(), labels))),
        "risk": rounded(float(risk.mean())),
        "risk at 90 %": rounded(float(risk[int(0.9 * len(risk)) - 1])),
        "told by entropy": rounded(float(curves[0][1].mean())),
        "told by information": rounded(float(curves[1][1].mean())),
        "risk by coverage": [rounded(float(each)) for each in risk[at]],
        "found by false alarms": [rounded(float(each)) for each in curves[0][1]],
    }


def joined(answers: list[Answer]) -> Answer:
    """Return the answers to the parts of a batch as one."""
    parts = [(each.probabilities, each.entropy_given) for each in answers]
    p, given = (torch.cat(part) for part in zip(*parts, strict=True))
    return Answer(probabilities=p, entropy_given=given)


def operating(score: Tensor, digits: int) -> tuple[Tensor, Tensor]:
    """Return, for shares of digits mistaken for garments, how many garments score higher.

    >>> operating(torch.tensor([0.0, 1.0, 2.0, 3.0]), 2)[1].mean()
    tensor(1., dtype=torch.float64)
    """
    false_alarms = torch.linspace(0, 1, 1001, dtype=torch.float64)
    at = torch.quantile(score[:digits].double(), 1 - false_alarms)
    own = score[digits:].double()
    found = (own[:, None] > at).double().mean(0) + 0.5 * (own[:, None] == at).double().mean(0)
    return false_alarms, found


def markdown(measured: dict[str, Any]) -> str:
    """Return the tables of all networks."""
    about = f"torch {measured['torch']}, momentprop at {measured['commit']}, {measured['processor']}"
    parts = [f"Measured with {about}, {measured['threads']} thread{'s' * (measured['threads'] > 1)}."]
    for network, found in measured["networks"].items():
        floor = found["floor"]
        parts += [
            f"**A {network}**, prior precision {found['precision']:g}: errors of the moments and class probabilities "
            "of 200 test images, compared with 5,000 draws, and times"
        ]
        rows = [[name, *_cells(each, ("eps_mean", "sigma", "rms", "kl", "moments", "classes"))]
                for name, each in found["methods"].items()]  # fmt: skip
        rows.append(["other 5,000 draws", *_cells(floor, ("eps_mean", "sigma", "rms", "kl")), "", ""])
        parts.append(table(["method", "eps_mean", "σ", "rms of log σ", "KL", "moments, ms", "classes, ms"], rows))
        parts += [f"**A {network}**, the same errors at a tenth of the prior precision, {found['precision'] / 10:g}"]
        rows = [
            [name, *_cells(each, ("eps_mean", "sigma", "rms", "kl"))] for name, each in found["at more noise"].items()
        ]
        parts.append(table(["method", "eps_mean", "σ", "rms of log σ", "KL"], rows))
        parts += [
            f"**A {network}**: errors on {found['images']:,} digits, and how well as many garments are told from them"
        ]
        keys = ("error", "nll", "risk", "risk at 90 %", "told by entropy", "told by information")
        rows = [[name, *_cells(each, keys)] for name, each in found["methods"].items()]
        parts.append(table(["method", "share of errors", "NLL", *keys[2:]], rows))
    return "\n\n".join(parts) + "\n"


def _cells(found: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
    return [f"{found[key]:.3g}" if key in found else "" for key in keys]


def plot(figure: "Figure", measured: dict[str, Any]) -> None:
    """Draw risk by coverage, and garments that are found by false alarms."""
    networks = measured["networks"]
    grid = figure.subplots(len(networks), 2, squeeze=False)
    for (left, right), (network, found) in zip(grid, networks.items(), strict=True):
        for name, line in LINES.items():
            each: Any = found["methods"][name]
            left.plot([i / 100 for i in range(101)], each["risk by coverage"], label=name, **line)
            curve = each["found by false alarms"]
            right.plot([i / 1000 for i in range(1001)], curve, label=name, **line)
        left.set(title=f"{network}: doubtful digits left out", xlabel="share of digits kept", ylabel="share of errors")
        right.set(title=f"{network}: garments among digits", xlabel="digits taken for garments")
        right.set(ylabel="garments found", xlim=(0, 0.5))
        left.legend()


if __name__ == "__main__":
    main()
