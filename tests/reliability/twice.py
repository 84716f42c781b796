"""Values that meet themselves, and fallbacks that mistake what an operation does."""

import pytest
import torch
import torch.nn.functional as F

from momentprop import DependenceWarning, MissingRule, Normal, propagate
from tests.reliability.rows import row


@row(7, 'fallback="quadrature" accepts operations that mix units', "mean 1.00, std 0.200; right: 2.86, 0.110")
def quadrature_refuses_what_mixes_units() -> str:
    """Each of them raises."""
    models = {
        "logcumsumexp": lambda x: torch.logcumsumexp(x, 0),
        "cumprod": lambda x: torch.cumprod(x, 0),
        "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    }
    for model in models.values():
        with pytest.raises(MissingRule, match="is not a function of each element of one value"):
            propagate(model, torch.ones(4, 2), input_variance=0.04, fallback="quadrature", covariance=False)
    return f"refused: {', '.join(models)}"


@row(14, "`linearize` of `logaddexp(x, x)`", "variance 0.5; right: 1")
def a_fallback_with_one_value_twice() -> str:
    """The value is one variable."""
    y = propagate(
        lambda x: torch.logaddexp(x, x), torch.ones(3), input_variance=1.0, fallback="linearize", covariance=False
    )
    torch.testing.assert_close(y.variance, torch.ones(3))
    return f"variance {y.variance[0]:.2f}"


@row(14, "one value twice in a product", "`x @ x`: mean 3, variance 9; right: 6, 18")
def products_of_a_value_with_itself() -> str:
    """All of them know the elements that are the same."""
    x, zeros = Normal(torch.ones(3), 1.0), torch.zeros(1, 1, 1)
    batch = x.view(1, 1, 3)
    for product in (x @ x, torch.inner(x, x), torch.tensordot(x, x, 1), torch.baddbmm(zeros, batch, batch.mT)):
        assert (product.loc.item(), product.variance.item()) == (6.0, 18.0)
    outer = torch.outer(x, x)
    assert outer.loc.tolist() == [[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]]
    assert outer.variance.tolist() == [[6.0, 3.0, 3.0], [3.0, 6.0, 3.0], [3.0, 3.0, 6.0]]
    return f"mean {(x @ x).loc:.0f}, variance {(x @ x).variance:.0f}"


@row(14, "sums of copies: a stack, repeated indices", "deviation × 0.71, × 0.78")
def sums_of_copies() -> str:
    """Copies of an element are added before they are squared."""
    x = Normal(torch.zeros(3), 1.0)
    assert torch.stack([x, x]).sum(0).variance.tolist() == [4.0, 4.0, 4.0]
    assert x[[0, 0, 1, 2]].sum().variance.item() == 6.0
    assert F.pad(x.view(1, 3), (1, 0), mode="replicate").sum().variance.item() == 6.0
    return "variances 4 and 6, as they are"


@row(14, "a value and its moved copy: `flip`, `roll`, pairs", "the element that meets itself as two")
def a_value_and_its_moved_copy() -> str:
    """Where an element meets itself, it is one variable."""
    x = Normal(torch.zeros(3), 1.0)
    assert (x + x.flip(0)).variance.tolist() == [2.0, 4.0, 2.0]
    assert (x[:, None] - x[None]).variance.tolist() == [[0.0, 2.0, 2.0], [2.0, 0.0, 2.0], [2.0, 2.0, 0.0]]
    return "variance of x + x.flip(0): 2, 4, 2"


@row(14, "what cannot be followed", "silent")
def dependence_that_is_not_followed_warns() -> str:
    """A convolution of a value with itself says so."""
    x = Normal(torch.zeros(1, 1, 3), 1.0)
    with pytest.warns(DependenceWarning, match="the arguments of 'conv1d' at top level have elements in common"):
        F.conv1d(x, x)
    return "a DependenceWarning"
