"""The paper's families: they keep their type, are plain at zero variance, and have right gradients."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Fitted, Logistic, Normal
from momentprop.distributions import LOGISTIC_VARIANCE

FAMILY_CALLS: dict[str, Callable[..., object]] = {
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3], dtype=torch.float64)),
    "abs": torch.abs,
    "heaviside": lambda x: torch.heaviside(x, torch.tensor(1.0, dtype=torch.float64)),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("family", [Logistic, Fitted])
@pytest.mark.parametrize("name", FAMILY_CALLS)
def test_families_keep_their_type_and_are_plain_at_zero_variance(name: str, family: type[Normal]) -> None:
    mean = torch.tensor([-30.0, -2.0, -1e-3, 0.0, 1e-3, 2.0, 30.0], dtype=torch.float64).requires_grad_()
    variance = torch.zeros_like(mean).requires_grad_()
    y = FAMILY_CALLS[name](family(mean, variance))
    assert type(y) is family
    assert torch.equal(y.loc, FAMILY_CALLS[name](mean))
    assert torch.equal(y.variance, torch.zeros_like(mean))
    grads = torch.autograd.grad(y.loc.sum() + y.variance.sum(), (mean, variance))
    assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("family", [Logistic, Fitted])
@pytest.mark.parametrize("name", FAMILY_CALLS)
def test_families_have_right_gradients(name: str, family: type[Normal]) -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    variance = (torch.rand(6, generator=generator, dtype=torch.float64) + 0.1).requires_grad_()

    def moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y = FAMILY_CALLS[name](family(m, v))
        return y.loc, y.variance

    assert torch.autograd.gradcheck(moments, (mean, variance))


def test_fitted_differs_from_normal_where_the_paper_fitted() -> None:
    x = torch.tensor([0.0])
    assert torch.relu(Fitted(x, 1.0)).variance.item() == pytest.approx(0.5)
    assert torch.relu(Normal(x, 1.0)).variance.item() == pytest.approx(0.3408, abs=1e-4)
    assert torch.relu(Logistic(x, LOGISTIC_VARIANCE)).loc.item() == pytest.approx(math.log(2))
