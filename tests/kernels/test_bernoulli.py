"""The Bernoulli units of logistic and normal noise have near exact moments."""

import numpy as np
import pytest
import torch
from scipy import special

from momentprop import Normal, functional
from tests import oracle

GRID = np.meshgrid(np.linspace(-30, 30, 41), np.logspace(-3, 3, 25), indexing="ij")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_logistic_bernoulli_unit_has_near_exact_moments(dtype: torch.dtype) -> None:
    mean, std = GRID
    truth = oracle.moments(lambda x, fn: fn.expit(x), mean, std**2)[0]
    y = functional.logistic_bernoulli(Normal(torch.tensor(mean, dtype=dtype), torch.tensor(std**2, dtype=dtype)))
    low = np.minimum(truth, 1 - truth)
    seen = low > 1e-9
    spread = np.sqrt(truth * (1 - truth))
    rounding = 8 * torch.finfo(dtype).eps * truth  # no mean can be better than its own rounding
    assert ((np.abs(y.loc.double().numpy() - truth) - rounding) / spread)[seen].max() < 1e-5
    assert np.abs(y.stddev.double().numpy() / spread - 1)[seen & (mean <= 0)].max() < 1e-5


def test_the_probit_bernoulli_unit_is_exact() -> None:
    mean, std = GRID
    y = functional.probit_bernoulli(Normal(torch.tensor(mean), torch.tensor(std**2)))
    truth = special.ndtr(mean / np.sqrt(1 + std**2))
    np.testing.assert_allclose(y.loc.numpy(), truth, rtol=1e-12)
    np.testing.assert_allclose(y.variance.numpy(), truth * special.ndtr(-mean / np.sqrt(1 + std**2)), rtol=1e-12)
