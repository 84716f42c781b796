r"""The showcase, `momentprop demo`: how accurate the propagation is on LeNet.

Three trained LeNets read handwritten digits, each random in its own way: one has noisy pixels, one drops units, and
one has random binary units. `momentprop.check` compares AP1 (a standard network), AP2 (means and variances, in one
pass) and AP2 that follows correlations with Monte Carlo at every layer, before and after `momentprop.calibrate`
corrects AP2 with a few draws. The demo prints the tables and writes reports for a browser.
"""

import dataclasses
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import momentprop
from momentprop.checking import Report, overview, sentences, tables
from momentprop.checking.overview import Entry
from momentprop.data import Dataset, load
from momentprop.markdown import paragraph, table
from momentprop.training import Settings, fit
from momentprop_experiments.networks import lenet
from momentprop_experiments.runs import trained_networks

OUT = Path("demo")
"""The folder of the reports."""

FIT_IMAGES, FIT_DRAWS = 64, 200
"""The number of training digits and draws of a calibration; a check with fewer draws calibrates with fewer too."""


@dataclass(frozen=True)
class Showcase:
    """A network, its noise, and how to train it if the weights of the repository are not available."""

    name: str
    title: str
    about: str
    kept: str
    activation: str = "lrelu"
    dropout: float = 0.0
    training: dict[str, Any] = field(default_factory=dict)
    noise: dict[str, Any] = field(default_factory=dict)


CASES = (
    Showcase(
        "noisy-input",
        "Noisy pixels",
        "Every pixel, normalized to variance 1 over the data, gets independent normal noise of variance 0.1.",
        kept="lenet-lrelu",
        training={"method": "ap1", "learning_rate": 3e-3, "epochs": 3},
        noise={"input_variance": 0.1},
    ),
    Showcase(
        "dropout",
        "Dropout",
        "Every unit is dropped with probability 0.2, in evaluation too.",
        kept="lenet-dropout",
        dropout=0.2,
        training={"method": "sample", "learning_rate": 3e-3, "epochs": 3},
        noise={"dropout": True},
    ),
    Showcase(
        "bernoulli",
        "Random binary units",
        "Every hidden unit is 1 with a probability given by a logistic function, and otherwise 0: a sigmoid belief "
        "network.",
        kept="lenet-bernoulli",
        activation="bernoulli",
        training={"method": "ap2", "family": "fitted", "learning_rate": 1e-2, "epochs": 3},
    ),
)

TITLE = "What does a network say under noise?"

INTRODUCTION = (
    "A network reads handwritten digits, and something in it is random: noise on the pixels, say. What will it read, "
    "and how sure can it be? The usual answer is to draw the noise hundreds of times and run the network on each "
    "draw. momentprop computes the mean and the standard deviation of every output instead, in one pass through the "
    "same network and, to follow what its units share, one backward pass for each output.",
    "Below, three networks are compared with draws of their noise: each first on the digit it is least sure of.",
)


def register(app: typer.Typer) -> None:
    """Add the command `demo` to an application."""
    app.command("demo")(main)


def main(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the reports.")] = OUT,
    *,
    images: Annotated[int, typer.Option(min=1, help="The number of test digits to check.")] = 128,
    draws: Annotated[int, typer.Option(min=2, help="The number of draws of the noise to compare with.")] = 500,
    training: Annotated[
        int | None, typer.Option(min=1, help="The number of digits to train with, if no trained networks are found.")
    ] = None,
) -> list[Entry]:
    """Show how accurate the propagation is: three LeNets against Monte Carlo, in about a minute.

    Prints the errors at every layer, and writes reports for a browser.
    """
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    data = load("digits")
    print(f"Three LeNets on {images} embedded test digits, against {draws:,} draws of their noise.\n", flush=True)
    entries = [_run(case, data, out, images, draws, training) for case in CASES]
    page = overview.save(out / "index.html", TITLE, INTRODUCTION, entries)
    print(_meaning(entries[0].report, page, time.perf_counter() - started))
    return entries


def _run(case: Showcase, data: Dataset, out: Path, count: int, draws: int, training: int | None) -> Entry:
    print(paragraph(f"{case.title}. {case.about}"), flush=True)
    model, images, others, origin = network(case, data, count, training)
    calibration = momentprop.calibrate(model, others, samples=min(FIT_DRAWS, draws), **case.noise)
    report = momentprop.check(
        model,
        images,
        samples=draws,
        class_names=data.classes,
        show=_uncertain(model, images, case),
        calibration=calibration,
        **case.noise,
    )
    report = dataclasses.replace(report, model=f"LeNet: {case.title.lower()}", call=f"{origin}\n{report.call}")
    report.save_html(out / f"{case.name}.html")
    advice = f"What to do next: {' '.join(report.advice)}"
    print(f"\n{table(*tables.summary(report, str))}\n\n{paragraph(advice)}\n", flush=True)
    return Entry(case.title, case.about, report, f"{case.name}.html")


def network(
    case: Showcase, data: Dataset, count: int, training: int | None = None
) -> tuple[nn.Module, Tensor, Tensor, str]:
    """Return a trained network, normalized test and training images, and the code that loads the network."""
    path = trained_networks.find(case.kept)
    if path is not None:
        try:
            model, about = trained_networks.load(case.kept)
        except ImportError:  # safetensors, which reads the weights, may not be installed
            path = None
        else:
            mean, std = (torch.tensor(about[part]) for part in ("mean", "std"))
            train, test = (dataclasses.replace(part, mean=mean, std=std) for part in (data.train, data.test))
            where = f"model, _ = momentprop_experiments.load_model({'results/networks/' + path.name!r})"
            return model, test.batch(range(count))[0], train.batch(range(FIT_IMAGES))[0], where
    data = data.normalized()
    images, others = data.test.batch(range(count))[0], data.train.batch(range(FIT_IMAGES))[0]
    return trained(case, data, training), images, others, "# trained by the demo"


def trained(case: Showcase, data: Dataset, count: int | None = None) -> nn.Module:
    """Train a network on the embedded digits, normalized, for a few epochs."""
    torch.manual_seed(0)
    images, labels = data.train.batch(slice(count))
    print(f"Training a LeNet on {len(labels):,} embedded digits.", flush=True)
    model = lenet(case.activation, dropout=case.dropout)
    momentprop.initialize(model, images[:1024], method="batch")
    settings = Settings(**case.training, device="cpu")
    history = fit(model, (images, labels), settings, progress=sys.stdout.isatty())
    print(f"Accuracy on the training digits: {history[-1]['train_accuracy']:.1%}", flush=True)
    return model.eval()


@torch.no_grad()
def _uncertain(model: nn.Module, images: Tensor, case: Showcase, count: int = 3) -> list[int]:
    """Return the images to show: those with the least certain class."""
    logits = momentprop.propagate(model, images, **case.noise, covariance=False)
    most = momentprop.functional.class_posterior(logits, -1, "race").loc.amax(-1)
    return [int(i) for i in most.argsort()[:count]]


def _meaning(report: Report, page: Path, seconds: float) -> str:
    """Return what the tables mean, and where to read on."""
    methods = {name: sentences.WORDS[name] for name in report.methods}
    said = {"The methods": methods, "The columns, for the outputs of all digits": tables.legend(report)}
    parts = [
        "\n".join([f"{title}:", *(paragraph(f"* {name}: {meaning}.") for name, meaning in meanings.items())])
        for title, meanings in said.items()
    ]
    shows = paragraph("It shows the digits, and histograms of the draws with what each method says about them.")
    parts.append(f"Open {page} in a browser.\n{shows}")
    parts.append(f"On your own network:\n\n    {overview.TRY}")
    return "\n\n".join([*parts, f"({seconds:.0f} s)"])


if __name__ == "__main__":
    typer.run(main)
