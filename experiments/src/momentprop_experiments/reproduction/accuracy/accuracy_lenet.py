"""The paper's accuracy table for LeNet on MNIST."""

from pathlib import Path

from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.accuracy.accuracy import AccuracyCase, Study, measure
from momentprop_experiments.reproduction.accuracy.accuracy_report import markdown, plot
from momentprop_experiments.reproduction.outcome import Outcome
from momentprop_experiments.reproduction.printed_numbers import LENET

NAME = "accuracy-lenet"
TITLE = "Accuracy of AP1 and AP2 at every layer of LeNet on MNIST (table)"

STUDY = Study(
    data="mnist",
    quick_data="digits",
    cases={
        "lrelu-1e-4": AccuracyCase("LReLU, noisy input N(0, 1e-4)", "lenet-lrelu", LENET["lrelu-1e-4"], 1e-4),
        "lrelu-0.01": AccuracyCase("LReLU, noisy input N(0, 0.01)", "lenet-lrelu", LENET["lrelu-0.01"], 0.01),
        "lrelu-0.1": AccuracyCase("LReLU, noisy input N(0, 0.1)", "lenet-lrelu", LENET["lrelu-0.1"], 0.1),
        "dropout": AccuracyCase("LReLU, dropout 0.2", "lenet-dropout", LENET["dropout"], dropout=True),
        "bernoulli": AccuracyCase("Logistic Bernoulli", "lenet-bernoulli", LENET["bernoulli"]),
        "logistic-0.1": AccuracyCase(
            "Logistic transform, noisy input N(0, 0.1)", "lenet-logistic", LENET["logistic-0.1"], 0.1
        ),
    },
    columns=(
        ("CA", "activation1"),
        ("C", "conv2"),
        ("A", "activation2"),
        ("C", "conv3"),
        ("A", "activation3"),
        ("F", "conv4"),
    ),
)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Measure all cases; `quick` takes embedded digits and few draws."""
    data = measure(STUDY, options)
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))
