"""Values that meet themselves, and fallbacks that mistake what an operation does."""

import pytest
import torch

from momentprop import MissingRule, propagate
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
            propagate(model, torch.ones(4, 2), input_variance=0.04, fallback="quadrature")
    return f"refused: {', '.join(models)}"


@row(14, "`linearize` of `logaddexp(x, x)`", "variance 0.5; right: 1")
def a_fallback_with_one_value_twice() -> str:
    """The value is one variable."""
    y = propagate(lambda x: torch.logaddexp(x, x), torch.ones(3), input_variance=1.0, fallback="linearize")
    torch.testing.assert_close(y.variance, torch.ones(3))
    return f"variance {y.variance[0]:.2f}"
