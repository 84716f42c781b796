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
from momentprop.kernels import joint_posterior as kernel
from momentprop_experiments.runs import trained_networks

NETWORK = "lenet-dropout"
SHAPE = (1, 28, 28)
PIXELS = math.prod(SHAPE)
_FEWEST = kernel.LEAST // 4  # the points of the first average of the class posterior
_SWEEPS = 6  # so many times every pair of axes is rotated
_TINY = 1e-30  # a gap between equal variances


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
    r"""The average softmax of correlated normal scores of an even number of classes, as the library takes it.

    It averages over the points of `momentprop.kernels.joint_posterior`, and over as many of them, because the average
    depends on both. ONNX has no eigenvalues, so it finds them by rotations. The program always takes all points, keeps
    the averages over the first 128, 256, 512, ... of them, and picks one.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        points = kernel._points(kernel.MANY, classes - 1, torch.float32, torch.device("cpu"))
        self.points = nn.Buffer(points[: kernel.MANY // 2])  # the others are their opposites
        parts = kernel.MANY // _FEWEST
        counts = 2 ** torch.arange(parts.bit_length()).unsqueeze(-1)
        self.shares = nn.Buffer((torch.arange(parts) < counts) / (_FEWEST * counts))

    def forward(self, loc: Tensor, covariance: Tensor) -> Tensor:
        """Return the logarithm of the probabilities; shapes: (1, classes), (1, classes, classes)."""
        root, spread = _root(loc[0].double(), covariance[0].double())
        moved = self.points @ root.float().mT
        p = torch.softmax(loc + moved, -1) + torch.softmax(loc - moved, -1)
        averages: Tensor = self.shares @ p.unflatten(0, (-1, _FEWEST // 2)).sum(1)
        return averages[_enough(averages, spread.float())].log()


def _enough(averages: Tensor, spread: Tensor) -> Tensor:
    """Return the place of the average over as many points as the library takes, with one dimension."""
    quarter, half, whole = averages[:3]
    divergence = kernel._divergence
    apart = torch.maximum(divergence(half, quarter) / 2**kernel._ORDER, divergence(whole, half))
    by_error = (kernel._SAFETY * apart / kernel._ACCURACY) ** (1 / kernel._ORDER)
    doubled = torch.maximum(by_error, spread**kernel._LARGE).clamp(1.0, kernel.MANY / kernel.LEAST).log2().ceil()
    return doubled.long().unsqueeze(0) + 2  # the least number comes after its quarter and its half


def _root(loc: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the root and the average variance, as the library's function of this name."""
    classes = len(loc)
    even = torch.full_like(loc, 1 / classes)
    variance = kernel._relative(covariance, even).diagonal().clamp(min=0.0)
    rough = torch.softmax(loc * torch.rsqrt(variance / LOGISTIC_VARIANCE + 1), -1)
    weight = (1 - kernel._EVENLY) * rough + kernel._EVENLY * even
    scale = weight.sqrt().unsqueeze(-1)
    values, axes = _eigh(scale * kernel._relative(covariance, weight) * scale.mT)
    values, largest = values.clamp(min=0.0).topk(classes - 1)
    axes = axes[:, largest]
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return axes * values.sqrt() / scale, values.sum()


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and axes of a symmetric matrix of even size, by the rotations of Jacobi.

    Every round rotates the axes in pairs. It reads the lower triangle only, as `torch.linalg.eigh` does.
    """
    matrix = matrix.tril() + matrix.tril(-1).mT
    axes = same = torch.eye(len(matrix), dtype=matrix.dtype)
    for partners in _rounds(len(matrix)) * _SWEEPS:
        pairs, ties = same[partners], _TINY * (torch.tensor(partners) - torch.arange(len(matrix)))
        variances, twice = (matrix * same).sum(0), 2 * (matrix * pairs).sum(0)
        gap = variances - pairs @ variances + ties
        tangent = twice / (gap + gap.sign() * (gap.square() + twice.square()).sqrt())
        rotation = (same + pairs * tangent) / (1 + tangent.square()).sqrt()
        matrix, axes = rotation.mT @ matrix @ rotation, axes @ rotation
    return matrix.diagonal(), axes


def _rounds(size: int) -> list[list[int]]:
    """Return the partner of each in the rounds of a tournament, in which an even number of players all meet once."""
    players, found = list(range(size)), []
    for _ in range(size - 1):
        partner = dict(zip(players, reversed(players), strict=True))
        found.append([partner[player] for player in range(size)])
        players = [players[0], players[-1], *players[1:-1]]
    return found


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
