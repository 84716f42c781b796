"""Small networks as users have them, trained in seconds, with their inputs; the repository keeps them.

A file `results/networks/small/NAME.safetensors` holds the weights in half precision, some training inputs to calibrate
on and the test inputs, so you need neither scikit-learn nor training to repeat the numbers.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop.training import checkpoint as checkpoints
from momentprop.training.checkpoint import Checkpoint
from momentprop_experiments.repository import find_results

STEPS = 1500
"""The number of steps of a training."""

_BATCH, _RATE = 128, 3e-3
_FITTED_TO = 64  # training inputs that are kept, to calibrate on


@dataclass(frozen=True)
class Inputs:
    """Training inputs with their targets, and test inputs."""

    train: Tensor
    targets: Tensor
    test: Tensor


@dataclass(frozen=True)
class Trained:
    """A trained network in evaluation mode, inputs to fit to, and inputs to test on."""

    model: nn.Module
    train: Tensor
    test: Tensor


@dataclass(frozen=True)
class SmallNetwork:
    """How to make and to train a network; one without a loss keeps its random weights."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    loss: Callable[[Tensor, Tensor], Tensor] | None = F.cross_entropy

    def trained(self, steps: int = STEPS) -> Trained:
        """Train the network from its seed."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            inputs, model = self.inputs(), self.make()
            if self.loss is not None:
                _fit(model, inputs, self.loss, steps)
        return Trained(model.eval(), inputs.train[:_FITTED_TO], inputs.test)


def load(name: str, folder: Path | None = None) -> Trained:
    """Load a network from the folder of small networks, or train and keep it there."""
    place = _file(name, folder)
    if place is None:
        return NETWORKS[name].trained()
    if not place.exists():
        keep(NETWORKS[name].trained(), place)
    found = checkpoints.read(place)
    model = NETWORKS[name].make()
    model.load_state_dict({name: weight.float() for name, weight in found.part("model.").items()})
    return Trained(model.eval().requires_grad_(False), found.tensors["train"], found.tensors["test"])


def keep(trained: Trained, place: Path) -> None:
    """Write a trained network with its inputs to a file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    weights = {f"model.{name}": weight.half() for name, weight in trained.model.state_dict().items()}
    checkpoints.write(place, Checkpoint({}, {**weights, "train": trained.train, "test": trained.test}))


def _file(name: str, folder: Path | None) -> Path | None:
    results = find_results()
    chosen = folder or (None if results is None else results / "networks")
    return None if chosen is None else chosen / "small" / f"{name}.safetensors"


def _fit(model: nn.Module, inputs: Inputs, loss: Callable[[Tensor, Tensor], Tensor], steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), _RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps)
    for _ in range(steps):
        chosen = torch.randint(len(inputs.train), (_BATCH,))
        optimizer.zero_grad()
        loss(model(inputs.train[chosen]), inputs.targets[chosen]).backward()
        optimizer.step()
        schedule.step()


def sensor_inputs() -> Inputs:
    r"""Draw readings of six sensors, and a target $\sin(2x_1)x_2 + x_3^2/2 - \tanh(x_4x_5) + 0.3x_6$."""
    x = torch.randn(4000, 6)
    target = torch.sin(2 * x[:, 0]) * x[:, 1] + 0.5 * x[:, 2] ** 2 - torch.tanh(x[:, 3] * x[:, 4]) + 0.3 * x[:, 5]
    return Inputs(x, target[:, None], torch.randn(1024, 6))


def digit_inputs() -> Inputs:
    """Load the 1,797 digits of 8 by 8 pixels of scikit-learn, standardized; 397 of them are for tests."""
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise ImportError('these digits come with scikit-learn: run `pip install "momentprop[experiments]"`') from error
    found = datasets.load_digits()
    pixels, labels = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    pixels = (pixels - pixels.mean()) / pixels.std()
    order = torch.randperm(len(pixels))
    train, test = order[:1400], order[1400:]
    return Inputs(pixels[train], labels[train], pixels[test])


def peers_inputs() -> Inputs:
    """Draw the 32 inputs of the comparison with other libraries."""
    x = torch.randn(32, 16)
    return Inputs(torch.randn(_FITTED_TO, 16), torch.zeros(_FITTED_TO), x)


class ResidualMLP(nn.Module):
    """Four residual blocks, each a layer normalization and a perceptron with GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        blocks = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(4)]
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)  # type: ignore[no-any-return]


class SmallTransformer(nn.Module):
    """Two pre-norm layers of width 32 with four heads, on the rows of a digit as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.positions = nn.Parameter(0.1 * torch.randn(8, 32))
        layers = [
            nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)
        ]
        self.layers = nn.ModuleList(layers)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.first(x.unflatten(-1, (8, 8))) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.last(x.mean(-2))  # type: ignore[no-any-return]


def sensor() -> nn.Module:
    """Build the perceptron 6-64-64-1 with tanh and SiLU."""
    return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))


def relu_mlp(inputs: int) -> nn.Module:
    """Build the perceptron with two hidden layers of 64 ReLUs and ten outputs."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def overlapping_maxima() -> nn.Module:
    """Build a convolution, a max pooling of stride 1, whose windows overlap, and a global maximum."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 1),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


NETWORKS = {
    "sensor": SmallNetwork(sensor, sensor_inputs, F.mse_loss),
    "digits-mlp": SmallNetwork(lambda: relu_mlp(64), digit_inputs),
    "digits-residual": SmallNetwork(ResidualMLP, digit_inputs),
    "digits-transformer": SmallNetwork(SmallTransformer, digit_inputs),
    "digits-maxima": SmallNetwork(overlapping_maxima, digit_inputs),
    "mlp-16": SmallNetwork(lambda: relu_mlp(16), peers_inputs, None),
}
"""The networks by name; `mlp-16` is that of the comparison with other libraries, with random weights."""
