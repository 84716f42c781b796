"""Sums over the nodes of a quadrature give the same, whether taken one by one (large tensors) or all at once."""

import pytest
import torch
import torch.nn.functional as F

from momentprop import Normal
from momentprop.kernels import sums

FUNCTIONS = [torch.sigmoid, torch.tanh, torch.special.ndtr, F.softplus, F.logsigmoid, F.silu, F.mish, F.gelu]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_large_tensors_give_what_their_parts_give(function):
    generator = torch.Generator().manual_seed(0)
    n = 2 * sums._SMALL_ON_CPU
    mean = 3 * torch.randn(n, generator=generator, dtype=torch.float64)
    variance = 9 * torch.rand(n, generator=generator, dtype=torch.float64)

    def run(part):
        x = mean[part].clone().requires_grad_(), variance[part].clone().requires_grad_()
        y = function(Normal(*x))
        return y.loc, y.variance, *torch.autograd.grad(y.loc.sum() + y.variance.sum(), x)

    halves = run(slice(0, n // 2)), run(slice(n // 2, n))
    torch.testing.assert_close(run(slice(None)), tuple(map(torch.cat, zip(*halves, strict=True))))


def test_total_gives_numbers_or_columns():
    rows = [(1.0, 0.5), (2.0, 0.25), (-3.0, 2.0)]
    for like in (torch.tensor([1.0, 2.0, 3.0]), torch.arange(2.0 * sums._SMALL_ON_CPU)):
        (found,) = sums.total(rows, lambda x, weight, like=like: (weight * (like - x) ** 2,), like)
        torch.testing.assert_close(found, sum(weight * (like - x) ** 2 for x, weight in rows))
