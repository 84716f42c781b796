"""The paper's accuracy table for its network on CIFAR-10, including the cases that its source comments out."""

from pathlib import Path

from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.accuracy.accuracy import AccuracyCase, Study, measure
from momentprop_experiments.reproduction.accuracy.accuracy_report import markdown, plot
from momentprop_experiments.reproduction.outcome import Outcome
from momentprop_experiments.reproduction.printed_numbers import CIFAR

NAME = "accuracy-cifar"
TITLE = "Accuracy of AP1 and AP2 at every layer of the CIFAR-10 network (table; takes a GPU)"

STUDY = Study(
    data="cifar10",
    quick_data="cifar10",
    cases={
        "lrelu-1e-4": AccuracyCase("LReLU, noisy input N(0, 1e-4)", "cifar-lrelu", CIFAR["lrelu-1e-4"], 1e-4),
        "lrelu-0.01": AccuracyCase("LReLU, noisy input N(0, 0.01)", "cifar-lrelu", CIFAR["lrelu-0.01"], 0.01),
        "lrelu-0.1": AccuracyCase("LReLU, noisy input N(0, 0.1)", "cifar-lrelu", CIFAR["lrelu-0.1"], 0.1),
        "dropout": AccuracyCase("LReLU, dropout 0.2", "cifar-dropout", CIFAR["dropout"], dropout=True),
        "bernoulli": AccuracyCase("Logistic Bernoulli", "cifar-bernoulli", CIFAR["bernoulli"]),
        "logistic-0.01": AccuracyCase(
            "Logistic transform, noisy input N(0, 0.01)", "cifar-logistic", CIFAR["logistic-0.01"], 0.01
        ),
    },
    columns=(
        *((kind, f"{name}{layer}") for layer in range(1, 9) for kind, name in (("C", "conv"), ("A", "activation"))),
        ("C", "conv9"),
        ("P", "pool"),
    ),
)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Measure all cases; `quick` takes two images and few draws, which suits a CPU."""
    data = measure(STUDY, options)
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))
