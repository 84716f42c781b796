"""Values and tensors as values of another type: what is lost is refused."""

import pytest
import torch
import torch.nn.functional as F
from examples.factors import Factors
from torch import Tensor

from momentprop import Categorical, Estimate, Fitted, Mean, MissingRule, Normal, Sample, propagate
from momentprop.values.conversion import as_type, as_values
from tests.values.factors import factors_of


def test_moments_means_and_draws_are_taken() -> None:
    x = Normal(torch.tensor([1.0, 2.0]), 0.5)
    assert as_type(x, Normal) is x
    fitted = as_type(x, Fitted)
    assert type(fitted) is Fitted
    assert torch.equal(fitted.variance, x.variance)
    assert torch.equal(as_type(x, Mean).loc, x.loc)
    assert as_type(x, Sample).loc.shape == (2,)
    assert torch.equal(as_type(Mean(x.loc), Normal).variance, torch.zeros(2))
    assert torch.equal(as_type(x.loc, Normal).variance, torch.zeros(2))
    posterior = Categorical(torch.zeros(2))
    assert torch.equal(as_type(posterior, Normal).variance, posterior.variance)
    draws = Estimate(x.loc, x.variance, x.loc, x.loc)
    assert torch.equal(as_type(draws, Normal).variance, x.variance)


def test_a_type_that_holds_more_is_not_cut_down() -> None:
    x = factors_of(3)
    with pytest.raises(TypeError, match="a Factors cannot be converted to a Normal without a loss"):
        propagate(torch.relu, x, method="ap2", covariance=False)
    assert torch.equal(propagate(torch.relu, x, method="ap1").loc, torch.relu(x.loc))


def test_a_plain_tensor_stays_plain_where_a_type_has_none() -> None:
    x = factors_of(3)

    def model(x: Factors) -> tuple[Factors, Tensor]:
        return torch.relu(x), torch.ones(2)  # type: ignore[arg-type, return-value]

    found, plain = propagate(model, x, covariance=False)
    assert type(found) is Factors
    assert type(plain) is Tensor
    assert type(as_values(torch.ones(2), Normal)) is Normal
    with pytest.raises(MissingRule, match="a plain tensor cannot become a Factors at top level"):
        propagate(lambda x: F.dropout(torch.ones(3), 0.5) + x, x, covariance=False)
