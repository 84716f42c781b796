"""Products and quotients, against their definition."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from momentprop import Normal

BILINEAR: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], tuple[int, ...]]] = {
    "mul": (torch.mul, (3, 4), (3, 4)),
    "mul_broadcast": (lambda x, y: x * y, (3, 1), (4,)),
    "matmul": (torch.matmul, (2, 3, 4), (4, 5)),
    "mm": (torch.mm, (3, 4), (4, 2)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 2)),
    "linear": (F.linear, (2, 4), (3, 4)),
    "conv2d": (F.conv2d, (1, 2, 4, 4), (3, 2, 2, 2)),
    "conv_transpose1d": (F.conv_transpose1d, (1, 2, 4), (2, 2, 3)),
}


@pytest.mark.parametrize("name", BILINEAR)
def test_products_of_independent_values_have_exact_moments(name: str) -> None:
    function, *shapes = BILINEAR[name]
    generator = torch.Generator().manual_seed(3)
    (m1, v1), (m2, v2) = (
        [draw(shape, generator=generator, dtype=torch.float64) for draw in (torch.randn, torch.rand)]
        for shape in shapes
    )
    y = function(Normal(m1, v1), Normal(m2, v2))
    plain = function(m1, m2)
    by_first = torch.func.jacrev(function, 0)
    mixed = torch.func.jacrev(by_first, 1)(m1, m2).reshape(plain.numel(), m1.numel(), m2.numel())
    first, second = (mixed @ m2.flatten()) ** 2, (m1.flatten() @ mixed) ** 2
    expected = first @ v1.flatten() + second @ v2.flatten() + ((mixed**2) @ v2.flatten()) @ v1.flatten()
    torch.testing.assert_close(y.loc, plain)
    torch.testing.assert_close(y.variance.flatten(), expected, rtol=1e-12, atol=1e-14)


def test_a_random_weight_and_bias_contribute_their_variance() -> None:
    x, w = torch.ones(1, 2, 3), Normal(torch.zeros(4, 2, 1), 2.0)
    y = F.conv1d(x, w, Normal(torch.ones(4), 0.5))
    assert torch.equal(y.loc, torch.ones(1, 4, 3))
    assert torch.equal(y.variance, torch.full((1, 4, 3), 4.5))
    z = F.linear(x, torch.zeros(2, 3), Normal(torch.ones(2), torch.tensor([1.0, 2.0])))
    assert torch.equal(z.variance, torch.tensor([1.0, 2.0]).expand(1, 2, 2))


def test_a_value_times_itself_is_its_square_and_over_itself_is_one() -> None:
    x = Normal(torch.tensor([2.0]), 0.25)
    assert (x * x).loc.item() == 4.25
    assert (x * x).variance.item() == 4.125
    assert (x / x).loc.item() == 1
    assert (x / x).variance.item() == 0


def test_division_with_rounding_is_refused() -> None:
    with pytest.raises(ValueError, match="rounding_mode='floor'"):
        torch.div(Normal(torch.ones(1), 1.0), 2.0, rounding_mode="floor")
