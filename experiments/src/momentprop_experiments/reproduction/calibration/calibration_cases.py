"""The cases of the calibration experiment: trained networks under noise, and the targets of some of them."""

from dataclasses import dataclass

from momentprop_experiments.reproduction.accuracy import accuracy_cifar, accuracy_lenet
from momentprop_experiments.reproduction.noisy_networks import NoisyNetwork


@dataclass(frozen=True)
class Target:
    """The accuracy that calibrated AP2 should reach at the output, and for `eps_std` also after every layer."""

    eps_mean: float
    divergence: float = 4.0  # the factor by which it should beat plain AP2, for the class posterior
    eps_std: tuple[float, float] = (0.95, 1.05)
    layers: tuple[float, float] = (0.88, 1.08)
    rms_log_std: float = 0.20


@dataclass(frozen=True)
class CalibrationCase(NoisyNetwork):
    """A network under noise, and what a calibration should reach there."""

    target: Target | None = None


TARGETS = {
    "lrelu-0.01": Target(0.06),
    "lrelu-0.1": Target(0.09),
    "dropout": Target(0.03, divergence=1.5),
    "bernoulli": Target(0.03),
    "logistic-0.1": Target(0.055),
}
"""The targets of the CIFAR-10 network."""


def _of_tables() -> dict[str, CalibrationCase]:
    """Return the cases of the paper's accuracy tables, and one more."""
    found = {}
    for name, each in accuracy_lenet.STUDY.cases.items():
        found[f"lenet-{name}"] = CalibrationCase(
            f"LeNet, {each.title}", each.network, "mnist", each.variance, each.dropout
        )
    for name, each in accuracy_cifar.STUDY.cases.items():
        title, target = f"CIFAR, {each.title}", TARGETS.get(name)
        found[f"cifar-{name}"] = CalibrationCase(title, each.network, "cifar10", each.variance, each.dropout, target)
    title = "CIFAR, Logistic transform, noisy input N(0, 0.1)"
    found["cifar-logistic-0.1"] = CalibrationCase(
        title, "cifar-logistic", "cifar10", 0.1, target=TARGETS["logistic-0.1"]
    )
    return found


CASES: dict[str, CalibrationCase] = {
    **_of_tables(),
    "resnet18-0.01": CalibrationCase("ResNet-18, noisy input N(0, 0.01)", "resnet18", "cifar10", 0.01),
    "resnet18-0.1": CalibrationCase("ResNet-18, noisy input N(0, 0.1)", "resnet18", "cifar10", 0.1),
    "vit-0.01": CalibrationCase("ViT, noisy input N(0, 0.01)", "vit", "cifar10", 0.01),
    "vit-0.1": CalibrationCase("ViT, noisy input N(0, 0.1)", "vit", "cifar10", 0.1),
    "vit-dropout": CalibrationCase("ViT, dropout 0.1", "vit", "cifar10", dropout=True),
}
"""All cases by name."""
