"""Derivatives of the race, and what it keeps for the backward pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal
from momentprop.kernels import race as race_kernels
from tests.rules.reductions.posteriors import METHODS, inputs, log_posterior


def _moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    y = F.softmax(Normal.of(mean, variance), -1)
    return y.loc, y.variance


@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_the_posterior_are_right(method: str, scale: float) -> None:
    # the race holds its nodes fixed, which costs accuracy, not consistency
    tolerance = 5e-3 if method == "race" else 1e-6
    assert torch.autograd.gradcheck(log_posterior(method), inputs(1, 4, scale=scale), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0])
def test_gradients_of_the_moments_are_right(scale: float) -> None:
    assert torch.autograd.gradcheck(_moments, inputs(1, 4, scale=scale), atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("std", [0.0, 0.3, 1.0, 2.0, 7.0])
def test_the_closed_derivatives_of_a_runner_are_right(std: float, order: int) -> None:
    gap = torch.linspace(-20, 0.5 - order, 24, dtype=torch.float64)
    variance = torch.full_like(gap, std**2)
    step = 1e-4
    by_gap, by_variance = race_kernels._logarithms(gap, variance, order).partials()  # type: ignore[misc]
    values = [race_kernels._logarithms(gap + d, variance, order)[:2] for d in (step, -step)]
    up, down = (race_kernels._logarithms(gap, variance + d, order)[:2] for d in (2 * step, 0.0))
    for k in range(2):
        numeric = (values[0][k] - values[1][k]) / (2 * step)
        torch.testing.assert_close(by_gap[k], numeric, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(by_variance[k], (up[k] - down[k]) / (2 * step), rtol=5e-2, atol=0.1)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("method", [*METHODS, "softmax"])
def test_functional_transforms_agree_with_autograd(method: str) -> None:
    call = log_posterior(method) if method != "softmax" else lambda m, v: _moments(m, v)[1]
    mean, variance = (part.detach() for part in inputs(3, 4))
    torch.testing.assert_close(torch.func.vmap(call)(mean, variance), call(mean, variance))
    reverse, forward = (jac(call, (0, 1))(mean, variance) for jac in (torch.func.jacrev, torch.func.jacfwd))
    torch.testing.assert_close(reverse, forward)
    hessian = torch.func.hessian(lambda m: call(m, variance)[:, 0].sum())(mean)
    torch.testing.assert_close(hessian, hessian.permute(2, 3, 0, 1), rtol=1e-2, atol=2e-3)


def _saved(call: Callable[[], Any]) -> int:
    """How many elements are kept for the backward pass of a call, each storage counted once."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    call()  # if kernels are built, now
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(sizes.values())


@pytest.mark.parametrize("method", ["race", "fast", "logistic", "normal"])
def test_memory_for_the_backward_pass_is_linear_in_the_classes(method: str) -> None:
    mean, variance = (part.detach().float().requires_grad_() for part in inputs(8, 300))
    assert _saved(lambda: log_posterior(method)(mean, variance)) <= 8 * mean.numel()
    assert _saved(lambda: _moments(mean, variance)) <= 8 * mean.numel()


def test_derivatives_in_float32_have_the_stated_error():
    generator = torch.Generator().manual_seed(0)
    mean = 3 * torch.randn(2, 3, 9, 10, generator=generator)
    variance = 10 ** (2 * torch.randn(2, 3, 9, 10, generator=generator) - 1)
    grads = []
    for dtype in (torch.float32, torch.float64):
        leaves = [part.to(dtype).requires_grad_() for part in (mean, variance)]
        grads.append(torch.autograd.grad(torch.softmax(Normal(*leaves), -1).variance.sum(), leaves))
    by_mean, by_variance = ((single - double).abs().max().item() for single, double in zip(*grads, strict=True))
    assert by_mean < 1e-4
    assert by_variance < 4e-3
