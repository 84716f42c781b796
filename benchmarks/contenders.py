"""What `speed.py` runs: networks with fresh weights, and the ways to run them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from turns import Run

import momentprop
from momentprop import Normal, propagate
from momentprop_experiments.networks import cifar, lenet, resnet18, vit

VARIANCE = 0.01
"""The variance of every input."""

DRAWS = 32
"""The number of draws, by `sample` and by hand."""


def small_mlp() -> nn.Sequential:
    """Build the multilayer perceptron 16-64-64-10."""
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (small_mlp, (16,)),
    "LeNet": (lenet, (1, 28, 28)),
    "CIFAR": (cifar, (3, 32, 32)),
    "ResNet-18": (resnet18, (3, 32, 32)),
    "ViT": (vit, (3, 32, 32)),
}
"""The networks by name, with the shape of an input."""


@dataclass(frozen=True)
class Scene:
    """A network in evaluation mode, and inputs with a variance."""

    model: nn.Module
    x: Tensor
    variance: Tensor

    @property
    def value(self) -> Normal:
        """The inputs as a value."""
        return Normal(self.x, self.variance)


def scene(network: str, batch: int, device: str) -> Scene:
    """Build a network on a device, and a batch of random inputs."""
    make, shape = NETWORKS[network]
    torch.manual_seed(0)
    x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    return Scene(make().to(device).eval(), x, torch.full_like(x, VARIANCE))


def prepare(device: str) -> None:
    """Let a GPU use TF32 and choose the fastest convolutions, for every contender alike."""
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True


def without_gradients(run: Run) -> Run:
    """Return a run without gradients."""

    def quiet() -> Any:
        with torch.no_grad():
            return run()

    return quiet


def forward(given: Scene) -> dict[str, Run]:
    """Return a forward pass of the plain network, by AP1 and by AP2."""
    model, x, value = given.model, given.x, given.value
    runs: dict[str, Run] = {
        "plain": lambda: model(x),
        "AP1": lambda: model(momentprop.Mean(x)),
        "AP2": lambda: model(value),
    }
    return {name: without_gradients(run) for name, run in runs.items()}


def both_ways(given: Scene) -> dict[str, Run]:
    """Return a forward and a backward pass to the weights, of the plain network and by AP2."""
    model, x, value = given.model, given.x, given.value

    def plain() -> None:
        model.zero_grad(set_to_none=True)
        model(x).sum().backward()

    def ap2() -> None:
        model.zero_grad(set_to_none=True)
        y = model(value)
        (y.loc.sum() + y.variance.sum()).backward()

    return {"plain": plain, "AP2": ap2}


def in_bfloat16(given: Scene) -> dict[str, Run]:
    """Return a forward pass by AP2, and one that multiplies variances in bfloat16."""
    ap2 = forward(given)["AP2"]
    return {"AP2": ap2, "bfloat16": roughly(ap2)}


def roughly(run: Run) -> Run:
    """Return a run that multiplies variances in bfloat16."""

    def rough() -> Any:
        with momentprop.variance_precision(torch.bfloat16):
            return run()

    return rough


def propagated(given: Scene) -> dict[str, Run]:
    """Return ways of `propagate` to compare with the direct call: independent units, output covariance, probes."""

    def covariance(**options: Any) -> Tensor:
        y = propagate(given.model, given.x, input_variance=VARIANCE, covariance=True, **options)
        return y.covariance  # type: ignore[no-any-return]

    runs: dict[str, Run] = {
        "propagate": lambda: propagate(given.model, given.x, input_variance=VARIANCE, covariance=False),
        "joint": covariance,
        "probes": lambda: covariance(probes=16),
    }
    return {"AP2": forward(given)["AP2"], **{name: without_gradients(run) for name, run in runs.items()}}


def drawn(given: Scene) -> dict[str, Run]:
    """Return draws by `propagate`, and as one batch by hand."""
    model, x = given.model, given.x

    def by_hand() -> tuple[Tensor, Tensor]:
        noisy = x.repeat(DRAWS, *[1] * (x.ndim - 1))
        y = model(noisy + VARIANCE**0.5 * torch.randn_like(noisy)).unflatten(0, (DRAWS, len(x)))
        return y.mean(0), y.var(0)

    runs: dict[str, Run] = {
        "sample": lambda: propagate(model, x, method="sample", input_variance=VARIANCE, samples=DRAWS),
        "by hand": by_hand,
    }
    return {name: without_gradients(run) for name, run in runs.items()}


class Independent(nn.Module):
    """AP2 of a model as a module of tensors, like the calibrated one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Normal:
        """Run the model by AP2."""
        return propagate(self.model, x, input_variance=VARIANCE, covariance=False)  # type: ignore[no-any-return]


def calibrated(given: Scene, compiled: bool) -> dict[str, Run]:
    """Return calibrated AP2 and AP2."""
    fitted = momentprop.calibrate(given.model, given.x[:8], input_variance=VARIANCE, samples=50)
    modules = {"AP2": Independent(given.model), "calibrated": momentprop.calibrated(given.model, fitted)}
    made = {name: on_compiler(module) if compiled else module for name, module in modules.items()}
    return {name: without_gradients(lambda module=module: module(given.x)) for name, module in made.items()}  # type: ignore[misc]


def on_compiler(module: nn.Module) -> Callable[..., Any]:
    """Return a compiled module; it compiles when it first runs."""
    return torch.compile(module, fullgraph=True, dynamic=False)  # type: ignore[no-any-return]


def compiled(given: Scene) -> dict[str, Run]:
    """Return a compiled forward pass of the plain network, by AP2, and with variances in bfloat16."""
    plain, ap2 = on_compiler(given.model), on_compiler(momentprop.AsTensors(given.model))
    runs: dict[str, Run] = {"plain": lambda: plain(given.x), "AP2": lambda: ap2(given.x, given.variance)}
    runs["bfloat16"] = roughly(runs["AP2"])
    return {name: without_gradients(run) for name, run in runs.items()}


def repeated(given: Scene) -> dict[str, Run]:
    """Return repeated passes of the plain network and by AP2, each by `momentprop.repeated`."""
    x, value = given.x, given.value
    plain, ap2 = momentprop.repeated(given.model), momentprop.repeated(given.model)
    return {"plain": without_gradients(lambda: plain(x)), "AP2": without_gradients(lambda: ap2(value))}
