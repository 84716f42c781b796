"""The programs of the page: a trained LeNet as plain network, as AP2 and as joint AP2, with all of its noise as input.

Dropout multiplies every unit by a random factor: zero with the rate of dropout, else so that its mean is one. The
programs take these factors beside the pixels, as one flat vector. So every random number of the network is an input,
whose mean and variance the page may choose, or draw.
"""

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop import Normal, to_onnx
from momentprop.data import digits
from momentprop.distributions import LOGISTIC_VARIANCE
from momentprop_experiments.runs import trained_networks

NETWORK = "lenet-dropout"
SHAPE = (1, 28, 28)
PIXELS = math.prod(SHAPE)
POINTS = 1 << 14
"""The points at which the class posterior of correlated scores averages."""

_EVENLY = 0.1  # the fraction of the rough posterior shared equally


class WithFactors(nn.Module):
    """A sequential network that takes the factors of its dropout as inputs, after the pixels."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.layers = nn.ModuleList(network)
        self.sizes = [PIXELS, *_dropped(network)]

    def forward(self, noise: Tensor) -> Tensor:
        """Return the scores of the classes."""
        image, *rest = noise.split(self.sizes, 1)
        factors = iter(rest)
        x: Tensor = image.unflatten(1, SHAPE)
        for layer in self.layers:
            x = x * next(factors).reshape(x.shape) if isinstance(layer, nn.Dropout) else layer(x)
        return x


def _dropped(network: nn.Sequential) -> list[int]:
    """Return how many units each dropout may drop."""
    sizes, x = [], torch.zeros(1, *SHAPE)
    with torch.no_grad():
        for layer in network:
            x = layer(x)
            if isinstance(layer, nn.Dropout):
                sizes.append(x.numel())
    return sizes


class Plain(WithFactors):
    """The same, which also gives the logarithm of the probabilities, for draws."""

    def forward(self, noise: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the scores of the classes, and the logarithm of their probabilities."""
        scores = super().forward(noise)
        return scores, torch.log_softmax(scores, -1)


class JointPosterior(nn.Module):
    r"""The average softmax of correlated normal scores, as `momentprop.kernels.joint_posterior` takes it.

    ONNX has no eigenvalues, so the root of the covariance is another: that of Cholesky, always by the largest pivot.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        sobol = torch.quasirandom.SobolEngine(classes - 1, scramble=True, seed=5)
        uniform = sobol.draw(POINTS // 2, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
        self.points = nn.Buffer((math.sqrt(2) * torch.special.erfinv(2 * uniform - 1)).float())

    def forward(self, loc: Tensor, covariance: Tensor) -> Tensor:
        """Return the logarithm of the probabilities; shapes: (1, classes), (1, classes, classes)."""
        moved = self.points @ _root(loc[0], covariance[0]).mT
        scores = torch.cat([loc + moved, loc - moved])
        return torch.softmax(scores, -1).mean(0, keepdim=True).log()


def _root(loc: Tensor, covariance: Tensor) -> Tensor:
    """Return a root of a covariance, up to what all scores share; the directions first that matter most."""
    classes = len(loc)
    even = torch.full_like(loc, 1 / classes)
    rough = torch.softmax(loc * torch.rsqrt(_relative(covariance, even).diagonal() / LOGISTIC_VARIANCE + 1), -1)
    weight = (1 - _EVENLY) * rough + _EVENLY * even
    scale = weight.sqrt().unsqueeze(-1)
    rest, columns = scale * _relative(covariance, weight) * scale.mT, []
    for _ in range(classes - 1):
        variances = rest.diagonal()
        pivot = nn.functional.one_hot(variances.argmax(), classes).to(rest)
        column = rest @ pivot * (variances @ pivot).clamp(min=1e-12).rsqrt()  # zero where nothing is left
        rest = rest - column.unsqueeze(-1) * column
        columns.append(column)
    return torch.stack(columns, -1) / scale


def _relative(covariance: Tensor, weight: Tensor) -> Tensor:
    """Return the covariance of the scores less their weighted average."""
    by_average = (covariance @ weight).unsqueeze(-1)
    return covariance - by_average - by_average.mT + weight @ by_average


class Reader:
    """The network of the page, its test digits, and what it knows of pixels that are missing."""

    def __init__(self) -> None:
        model, about = trained_networks.load(NETWORK)
        assert isinstance(model, nn.Sequential)
        self.network, self.accuracy = model, float(about["test"]["accuracy"])
        self.mean, self.std = float(about["mean"][0]), float(about["std"][0])
        training, _ = digits("train")
        self.pixel_mean, self.pixel_variance = (training.mean(0) - self.mean) / self.std, training.var(0) / self.std**2
        self.images, self.labels = digits("test")
        self.order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(0)).reshape(SHAPE)

    @property
    def factors(self) -> int:
        """The number of units that dropout may drop."""
        return sum(_dropped(self.network))

    def input(self, image: Tensor, noise: float, missing: float) -> Normal:
        """Return an image whose pixels are noisy, by a fraction of black to white, and some of them missing."""
        mask = self.order < round(missing * PIXELS)
        x = (image.reshape(1, *SHAPE) - self.mean) / self.std
        observed = (noise / self.std) ** 2
        return Normal.missing(x, mask.unsqueeze(0), self.pixel_mean, self.pixel_variance, noise=observed)

    def with_factors(self, x: Normal, dropout: float) -> Normal:
        """Return the input of the programs for an image and a rate of dropout."""
        ones = torch.ones(1, self.factors)
        parts = (x.loc.flatten(1), ones), (x.variance.flatten(1), dropout / (1 - dropout) * ones)
        return Normal(*(torch.cat(part, 1) for part in parts))

    def export(self, folder: Path) -> list[Path]:
        """Write the programs, and return their files."""
        folder.mkdir(parents=True, exist_ok=True)
        names = ("plain", "ap2", "ap2_posterior", "joint", "joint_posterior")
        plain, ap2, ap2_posterior, joint, joint_posterior = paths = [folder / f"{name}.onnx" for name in names]
        example = self.with_factors(self.input(self.images[0], 0.1, 0.1), 0.1)
        network, classes = WithFactors(self.network).eval(), len(self.labels.unique())
        _export(Plain(self.network), {"input": example.loc}, ["scores", "log_probabilities"], plain, {0: "batch"})
        to_onnx(network, example, ap2)
        to_onnx(nn.LogSoftmax(-1), Normal(torch.zeros(1, classes), 1.0), ap2_posterior)
        to_onnx(network, example, joint, covariance=True)
        scores = {"loc": torch.zeros(1, classes), "covariance": torch.eye(classes).unsqueeze(0)}
        _export(JointPosterior(classes), scores, ["log_probabilities"], joint_posterior)
        return paths


def _export(
    model: nn.Module, example: dict[str, Tensor], outputs: list[str], path: Path, batch: dict[int, str] | None = None
) -> None:
    """Write a model of plain tensors as an ONNX program."""
    options: dict[str, Any] = {"input_names": list(example), "output_names": outputs, "verbose": False}
    if batch is not None:
        options["dynamic_shapes"] = [batch]
    with warnings.catch_warnings(action="ignore"):  # of the exporter, about torch's own functions
        program = torch.onnx.export(model, tuple(example.values()), dynamo=True, **options)
    assert program is not None
    program.save(str(path))
