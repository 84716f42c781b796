"""The cases: trained networks under noise, large and small."""

from dataclasses import dataclass, replace

from momentprop_experiments.reproduction.calibration import calibration_cases
from momentprop_experiments.reproduction.noisy_networks import NoisyNetwork

Variance = float | tuple[float, ...] | None


@dataclass(frozen=True)
class CorrelationCase:
    """A network under noise. One without a data set is small, and brings its own inputs."""

    title: str
    network: str
    data: str | None = None
    variance: Variance = None  # of the inputs: a number, or one for each feature
    dropout: bool = False
    classes: bool = True  # whether the outputs are logits
    full: bool = False  # whether the whole covariance matrix is carried, too

    @property
    def group(self) -> str:
        """The kind of network, which decides how much is drawn."""
        return "small" if self.data is None else self.network.split("-")[0]

    @property
    def noisy(self) -> NoisyNetwork:
        """The same case for the other experiments."""
        assert self.data is not None
        assert not isinstance(self.variance, tuple)
        return NoisyNetwork(self.title, self.network, self.data, self.variance, self.dropout)


def _of_calibration() -> dict[str, CorrelationCase]:
    """Return the cases of the experiment on calibration, with short titles."""
    short = {
        "noisy input N(0, ": "",
        ")": "",
        "Logistic transform": "logistic",
        "Logistic Bernoulli": "Bernoulli",
        "LReLU, ": "",
    }
    found = {}
    for name, case in calibration_cases.CASES.items():
        title = case.title
        for long, brief in short.items():
            title = title.replace(long, brief)
        found[name] = CorrelationCase(title, case.network, case.data, case.variance, case.dropout)
    return found


def _with_the_narrow_one(cases: dict[str, CorrelationCase]) -> dict[str, CorrelationCase]:
    """Put the repository's ResNet-18 before the wide one, which is too large for the repository."""
    found = {}
    for name, case in cases.items():
        if case.network == "resnet18":
            narrow = replace(case, title=case.title.replace(",", " (16),"), network="resnet18-narrow")
            found[name.replace("resnet18", "narrow")] = narrow
    wide = {name: case for name, case in cases.items() if case.network == "resnet18"}
    first = [name for name in cases if name not in wide and not name.startswith("vit")]
    last = [name for name in cases if name.startswith("vit")]
    return {**{name: cases[name] for name in first}, **found, **wide, **{name: cases[name] for name in last}}


_SENSORS = (0.01, 0.04, 0.02, 0.09, 0.01, 0.05)

SMALL = {
    "sensor": CorrelationCase("sensor MLP", "sensor", variance=_SENSORS, classes=False, full=True),
    "sensor-10": CorrelationCase(
        "sensor MLP, ten times",
        "sensor",
        variance=tuple(round(10 * v, 6) for v in _SENSORS),
        classes=False,
        full=True,
    ),
    "digits-mlp-0.25": CorrelationCase("digits MLP, 0.25", "digits-mlp", variance=0.25, full=True),
    "digits-residual-0.25": CorrelationCase("residual MLP, 0.25", "digits-residual", variance=0.25, full=True),
    "digits-transformer-0.01": CorrelationCase("transformer, 0.01", "digits-transformer", variance=0.01),
    "digits-transformer-0.25": CorrelationCase("transformer, 0.25", "digits-transformer", variance=0.25),
    "digits-maxima": CorrelationCase("maxima, 0.01", "digits-maxima", variance=0.01),
    "mlp-16": CorrelationCase("MLP 16-64-64-10, 0.25", "mlp-16", variance=0.25, full=True),
}
"""Small networks as users have them."""

CASES: dict[str, CorrelationCase] = {**_with_the_narrow_one(_of_calibration()), **SMALL}
"""All cases by name."""
