"""What is measured of an architecture: its limits at zero variance, its accuracy against draws, and its compilation."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from momentprop import Estimate, Normal, propagate
from momentprop.checking import metrics
from momentprop.sampling import RunningMoments
from tests.architectures import Architecture

Network = Callable[[Any], Any]


class Reference(NamedTuple):
    """Mean and deviation of every output by many draws, and what so many draws cannot resolve."""

    truth: Estimate
    mean_floor: float
    std_floor: float


class Accuracy(NamedTuple):
    """How well the moments of the outputs agree with those of many draws (marked by a star)."""

    mean_ap1: float  # mean |output of the plain network - mean*|, in units of the mean deviation*
    mean_ap2: float  # mean |mean - mean*|, in units of the mean deviation*
    mean_floor: float  # the same of the draws themselves
    std: float  # geometric mean of deviation / deviation*
    std_floor: float  # root mean square of the relative error of deviation*
    correlation: float  # of log deviation and log deviation*


def network(architecture: Architecture, model: nn.Module) -> Network:
    return lambda x: architecture.call(model, x)


@torch.no_grad()
def accuracy_under_noise(architecture: Architecture, std: float, draws: int) -> Accuracy:
    """Compare AP1 and AP2 with draws of normal noise of deviation `std` on the input."""
    run, x = network(architecture, architecture.build()), architecture.input()
    return _accuracy(run(x), run(Normal(x, std * std)), noisy_outputs(run, x, std, draws))


@torch.no_grad()
def accuracy_under_dropout(architecture: Architecture, draws: int) -> Accuracy:
    """Compare AP1 and AP2 with draws of the network's own dropout, the input being certain."""
    model, x = architecture.build(), architecture.input()
    run = network(architecture, model)
    value = architecture.of(propagate(model, dropout=True, **architecture.arguments(x), covariance=False))
    return _accuracy(run(x), value, dropped_outputs(model, run, x, draws))


def noisy_outputs(run: Network, x: Tensor, std: float, draws: int, seed: int = 0) -> Iterable[Tensor]:
    """Outputs for a noisy input, in pairs of opposite noise: that keeps the moments and steadies their means."""
    generator = torch.Generator().manual_seed(seed)
    for count in _chunks(draws // 2, 2 * x.numel()):
        noise = std * torch.randn(count, *x.shape, generator=generator, dtype=x.dtype)
        yield torch.cat([_batched(run, x + noise), _batched(run, x - noise)])


def dropped_outputs(model: nn.Module, run: Network, x: Tensor, draws: int, seed: int = 0) -> Iterable[Tensor]:
    """Outputs with dropout drawn by torch: every module is in training mode, but for batch normalization."""
    for module in model.modules():
        module.training = not isinstance(module, nn.modules.batchnorm._BatchNorm)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for count in _chunks(draws, x.numel()):
            yield _batched(run, x.expand(count, *x.shape))
    model.eval()


def _chunks(draws: int, elements: int) -> Iterable[int]:
    """An even number of chunks of `draws` in all, each of some 200,000 input elements at most."""
    chunks = 2 * math.ceil(draws * elements / 400_000)
    return [draws // chunks] * chunks


def _batched(run: Network, inputs: Tensor) -> Tensor:
    outputs = run(inputs.flatten(0, 1))
    return outputs.reshape(len(inputs), -1, *outputs.shape[1:])


def reference(chunks: Iterable[Tensor]) -> Reference:
    """The moments of drawn outputs; what the two halves of the draws differ by tells what they cannot resolve."""
    whole, *halves = (RunningMoments() for _ in range(3))
    for i, outputs in enumerate(chunks):
        whole.add(outputs)
        halves[i % 2].add(outputs)
    truth, a, b = (moments.estimate(torch.float64) for moments in (whole, *halves))
    mean_floor = (a.loc - b.loc).abs().mean() / 2 / truth.stddev.mean()
    std_floor = (a.stddev / b.stddev).log().square().mean().sqrt() / 2
    return Reference(truth, float(mean_floor), float(std_floor))


def _accuracy(plain: Tensor, value: Normal, chunks: Iterable[Tensor]) -> Accuracy:
    truth, mean_floor, std_floor = reference(chunks)
    stddev = value.stddev.double()
    logs = torch.stack([stddev.log().flatten(), truth.stddev.log().flatten()])
    return Accuracy(
        mean_ap1=metrics.eps_mean(plain.double(), truth),
        mean_ap2=metrics.eps_mean(value.loc.double(), truth),
        mean_floor=mean_floor,
        std=metrics.eps_std(stddev, truth),
        std_floor=std_floor,
        correlation=float(torch.corrcoef(logs)[0, 1]),
    )


@torch.no_grad()
def error_at(architecture: Architecture, variance: float, dtype: torch.dtype = torch.float64) -> float:
    """The largest difference of the mean from the plain output, relative to the largest output."""
    run, x = network(architecture, architecture.build().to(dtype)), architecture.input().to(dtype)
    return _difference(run(Normal(x, variance)).loc, run(x))


def _difference(tensor: Tensor, truth: Tensor) -> float:
    return float((tensor - truth).abs().max() / truth.abs().max())


def plain_gradients(architecture: Architecture, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The gradient of a random combination of the plain outputs, for every parameter that it reaches."""
    model = architecture.build().to(dtype)
    return _gradients(model, architecture.call(model, architecture.input().to(dtype)))


def gradients(
    architecture: Architecture, variance: float, of: str = "loc", dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """The gradient of the same random combination of the components of the outputs that `of` names."""
    model = architecture.build().to(dtype)
    value = architecture.call(model, Normal(architecture.input().to(dtype), variance))
    return _gradients(model, *(getattr(value, part) for part in of.split()))


def _gradients(model: nn.Module, *outputs: Tensor) -> dict[str, Tensor]:
    weights = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(3), dtype=outputs[0].dtype)
    torch.stack([(weights * output).sum() for output in outputs]).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@torch.no_grad()
def compiled_error(architecture: Architecture, std: float = 0.1) -> float:
    """The largest difference of compiled from eager mean or variance, relative to the largest of each.

    Inside `propagate`, because dynamo alone does not look for values in a tuple, as in `torch.cat((token, x))`.
    """
    torch.compiler.reset()
    model, value = architecture.build(), Normal(architecture.input(), std * std)
    eager = architecture.call(model, value)
    compiled_model = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled = architecture.of(propagate(compiled_model, **architecture.arguments(value), covariance=False))
    return max(_difference(compiled.loc, eager.loc), _difference(compiled.variance, eager.variance))
