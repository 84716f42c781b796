"""Numerical defects: kernels at the ends of their ranges, near kinks, and where functions oscillate."""

import math

import torch
import torch.nn.functional as F

from momentprop import Normal
from tests.reliability.rows import row


@row(3, "attention where one key surely wins", "NaN")
def sure_winner() -> str:
    """The winner's value, without variance."""
    query = Normal(torch.tensor([[25.0]]), 4.0)
    y = F.scaled_dot_product_attention(query, torch.tensor([[25.0], [-25.0]]), torch.tensor([[1.0], [2.0]]))
    assert y.loc.item() == 1.0
    assert 0 <= y.variance.item() < 1e-6
    return f"mean {y.loc.item()}, variance {y.variance.item()}"


@row(3, "attention with score variances from 100 to 1e6", "242 of 1,346 cases NaN")
def wild_attention() -> str:
    """Finite moments, within the range of the values."""
    g = torch.Generator().manual_seed(0)
    size = 10 ** (1 + 2 * torch.rand(2000, 1, 1, generator=g))
    query = Normal(size * torch.randn(2000, 1, 2, generator=g), torch.rand(2000, 1, 2, generator=g) * size)
    key, value = torch.randn(2000, 4, 2, generator=g) * size**0.5, torch.rand(2000, 4, 1, generator=g)
    y = F.scaled_dot_product_attention(query, key, value)
    bad = int((~(y.variance >= 0) | ~y.loc.isfinite() | (y.variance > 0.26)).sum())
    assert bad == 0
    return f"{bad} of 2,000 cases"


@row(10, "`exp` at zero variance where its square overflows", "NaN")
def certain_exponentials() -> str:
    """No variance."""
    mean = torch.tensor([50.0, -math.inf, -1e38])
    found = [f(Normal.of(mean, torch.zeros(3))).variance for f in (torch.exp, torch.exp2, torch.expm1)]
    assert all(torch.equal(variance, torch.zeros(3)) for variance in found)
    return f"variance {found[0].tolist()}"


@row(10, "a masked softmax by hand", "NaN")
def masked_softmax_by_hand() -> str:
    """The plain softmax of what is not masked."""
    weight = Normal(torch.tensor([50.0, 49.0, 3.0]), 0.0)
    weight = weight.masked_fill(torch.tensor([False, False, True]), -math.inf).exp()
    y = weight / weight.sum(-1, keepdim=True)
    torch.testing.assert_close(y.loc, torch.tensor([*torch.softmax(torch.tensor([50.0, 49.0]), 0), 0.0]))
    assert torch.equal(y.variance, torch.zeros(3))
    return f"mean {[round(p, 4) for p in y.loc.tolist()]}, variance {y.variance.tolist()}"


@row(13, "`x * sin(10 x)`", "deviation 0.533 where it is 0.871")
def fast_wave() -> str:
    """The deviation of the whole function."""
    x = Normal(torch.tensor([-1.12], dtype=torch.float64), 0.263)
    deviation = (x * torch.sin(10 * x)).stddev.item()
    assert abs(deviation - 0.871) < 1e-3
    return f"deviation {deviation:.4f}"


@row(13, "`sin(x) * cos(x)`", "deviation 0.180 where it is 0.354")
def wide_wave() -> str:
    """That of a sine of half the size."""
    x = Normal(torch.tensor([8.6], dtype=torch.float64), 8.0)
    deviation, truth = (torch.sin(x) * torch.cos(x)).stddev.item(), (0.5 * torch.sin(2 * x)).stddev.item()
    assert abs(deviation / truth - 1) < 1e-5
    return f"deviation {deviation:.4f}"


@row(27, "`hardshrink` with a negative threshold", "variance -0.076")
def negative_shrinkage() -> str:
    """The input itself, as in torch."""
    y = F.hardshrink(Normal(torch.tensor([0.3]), 1.0), -0.5)
    assert y.loc.item() == torch.tensor(0.3).item()
    assert y.variance.item() == 1.0
    return f"variance {y.variance.item()}"


@row(30, "`hardsigmoid` of N(3, 0.0014^2) in float32", "error 3.2e-4 (5e-6 stated)")
def near_a_kink() -> str:
    """The deviation of float64."""
    x = Normal(torch.tensor([3.0, 3.0002, -3.0002]), 0.0014**2)
    error = float((F.hardsigmoid(x).stddev / F.hardsigmoid(x.double()).stddev - 1).abs().max())
    assert error < 5e-6
    return f"error {error:.1e}"
