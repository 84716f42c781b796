"""Custom autograd functions that would drop gradients are refused."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal
from tests.stack.inputs import Around, a_value, an_mlp, assert_equal


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: Any, slope: float = 0.1) -> Any:
        return F.leaky_relu(x, slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


@pytest.mark.parametrize("function", [_Straight, _WithSetup])
def test_an_autograd_function_that_drops_gradients_is_refused(function: Any) -> None:
    model = Around(lambda self, x: function.apply(self.body(x)))
    with pytest.raises(RuntimeError, match=f"autograd function '{function.__name__}' at module Around would lose"):
        model(a_value(5, 6))


def test_an_autograd_function_runs_where_no_gradients_are_wanted() -> None:
    x = a_value(5)
    assert_equal(_Straight.apply(x), torch.relu(x))
    with torch.no_grad():
        assert_equal(
            Around(lambda self, x: _Straight.apply(self.body(x)))(a_value(5, 6)), torch.relu(an_mlp()(a_value(5, 6)))
        )


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_inference_of_values_that_require_gradients_is_allowed(context: Any) -> None:
    x = a_value(5, 6)
    x = Normal(x.loc.requires_grad_(), x.variance.requires_grad_())
    with context():
        assert not an_mlp()(x).requires_grad
