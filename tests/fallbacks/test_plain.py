"""What a fallback makes of one value given twice, of functions of one value, and of unusual functions."""

import pytest
import torch
from torch import Tensor

from momentprop import DependenceWarning, MissingRule, Normal, operation, propagate

X = torch.tensor([0.5, 1.0, 2.0])
EVERY = ("quadrature", "monte_carlo", "linearize")
V = 0.01


@operation
def doubled_log(x: Tensor, y: Tensor) -> Tensor:
    """A function of two values without a rule."""
    return torch.log(torch.exp(x) + torch.exp(y))


@operation
def noisy(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape)


@operation
def rounded(x: Tensor) -> Tensor:
    return x.round().long()


@operation
def itself(x: Tensor) -> Tensor:
    return x


@operation
def positive_ones(x: Tensor) -> Tensor:
    return x[x > 1]


@pytest.mark.parametrize("fallback", EVERY)
def test_one_value_given_twice_is_one_variable(fallback: str) -> None:
    y = propagate(lambda x: doubled_log(x, x), X, input_variance=V, fallback=fallback, seed=0, covariance=False)
    torch.testing.assert_close(y.stddev, torch.full_like(X, 0.1), rtol=0.1, atol=0)


@pytest.mark.parametrize("fallback", EVERY)
def test_functions_of_one_value_are_one_variable(fallback: str) -> None:
    y = propagate(lambda x: doubled_log(2 * x, -x), X, input_variance=V, fallback=fallback, seed=0, covariance=False)
    slope = 2 * torch.sigmoid(3 * X) - torch.sigmoid(-3 * X)
    torch.testing.assert_close(y.stddev, 0.1 * slope, rtol=0.15, atol=0)


@pytest.mark.parametrize("fallback", ["quadrature", "linearize"])
def test_randomness_of_the_function_is_not_lost(fallback: str) -> None:
    with pytest.raises(MissingRule, match="'noisy' at top level has no rule and draws random numbers"):
        propagate(noisy, X, input_variance=V, fallback=fallback, covariance=False)
    y = propagate(noisy, X, input_variance=0.0, fallback="monte_carlo", seed=0, covariance=False)
    torch.testing.assert_close(y.stddev, X / 12**0.5, rtol=0.1, atol=0)


@pytest.mark.parametrize("fallback", EVERY)
def test_integers_are_not_random_values(fallback: str) -> None:
    with pytest.raises(MissingRule, match="'rounded' at top level has no rule and gives no floating-point tensor"):
        propagate(rounded, X, input_variance=V, fallback=fallback, covariance=False)


@pytest.mark.parametrize("fallback", EVERY)
def test_a_function_may_return_its_argument(fallback: str) -> None:
    y = propagate(lambda x: itself(x[:2]), X, input_variance=V, fallback=fallback, seed=0, covariance=False)
    torch.testing.assert_close(y.stddev, torch.full((2,), 0.1), rtol=0.1, atol=0)


def test_a_random_shape_is_refused() -> None:
    with pytest.raises(MissingRule, match="the shape of its result is random"):
        propagate(positive_ones, X, input_variance=V, fallback="monte_carlo", seed=0, covariance=False)


def test_an_operation_in_place_with_itself() -> None:
    def model(x: Normal) -> Normal:
        y = -x
        y.hypot_(x)  # type: ignore[attr-defined]
        return y

    y = propagate(model, X, input_variance=V, fallback="linearize", covariance=False)
    torch.testing.assert_close(y.loc, 2**0.5 * X)
    torch.testing.assert_close(y.stddev, torch.full_like(X, 0.1 * 2**0.5))


def test_elements_in_common_warn() -> None:
    with pytest.warns(DependenceWarning, match="the arguments of 'doubled_log' at top level have elements in common"):
        propagate(lambda x: doubled_log(x, x.flip(0)), X, input_variance=V, fallback="linearize", covariance=False)
