"""Activations of one pixel are those of a normal value."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Normal, Statistics
from momentprop.nn import LogisticBernoulli

"""Operations whose rule for `Normal` is right for one pixel; those with indices refuse it themselves."""
ACTIVATIONS = {
    "kinks": (9e-4, "abs hardsigmoid hardswish hardtanh relu6 selu".split()),
    "smooth": (1.1e-4, "celu elu gelu mish sigmoid silu softplus softsign tanh".split()),
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_are_those_of_a_normal_value(kind: str) -> None:
    tolerance, ops = ACTIVATIONS[kind]
    a = torch.linspace(-6.0, 6.0, 1001, dtype=torch.float64)
    for op in ops:
        function = getattr(torch, op, None) or getattr(F, op)
        for deviation in (0.1, 1.0, 3.0, 10.0):
            variance = torch.full_like(a, deviation**2)
            found, wanted = (function(kind.of(a * deviation, variance)) for kind in (Statistics, Normal))
            assert ((found.loc - wanted.loc).abs() < tolerance * deviation).all(), op
            assert ((found.stddev - wanted.stddev).abs() < tolerance * deviation).all(), op


def test_rectifiers_and_binary_units_are_those_of_a_normal_value() -> None:
    a = torch.linspace(-9.0, 9.0, 1001)
    for unit, tolerance in ((torch.relu, 3e-6), (nn.LeakyReLU(0.1), 3e-6), (LogisticBernoulli(), 1e-6)):
        for deviation in (0.1, 1.0, 10.0):
            variance = torch.full_like(a, deviation**2)
            found, wanted = (unit(kind.of(a * deviation, variance)) for kind in (Statistics, Normal))
            assert ((found.loc - wanted.loc).abs() < tolerance * max(deviation, 1)).all()
            assert ((found.variance - wanted.variance).abs() < tolerance * max(deviation**2, 1)).all()


@pytest.mark.parametrize("slope", [0.0, 0.1, -0.3, 2.0])
def test_derivatives_of_rectifiers_are_right_and_always_finite(slope: float) -> None:
    mean = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64).requires_grad_()
    variance = torch.linspace(0.1, 2.0, 9, dtype=torch.float64).requires_grad_()

    def run(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        value = F.leaky_relu(Statistics.of(mean, variance), slope)
        return value.loc, value.variance

    assert torch.autograd.gradcheck(run, (mean, variance))
    nothing = torch.zeros_like(mean).requires_grad_()
    gradients = torch.autograd.grad(sum(part.sum() for part in run(mean, nothing)), (mean, nothing))
    assert all((gradient.abs() < 10).all() for gradient in gradients)
