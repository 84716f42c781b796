"""The paper's step is exact for logistic units."""

import math

import pytest
from scipy import special

from momentprop import paper
from momentprop.distributions import LOGISTIC_VARIANCE
from tests.paper.logistic_units import MEANS, STDS, tensors


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("std", STDS)
def test_the_logistic_step_is_exact_for_logistic_units(mean: float, std: float) -> None:
    m, v = paper.heaviside_logistic(*tensors(mean, std**2))
    expected = special.expit(mean * math.sqrt(LOGISTIC_VARIANCE) / std)
    assert m.item() == pytest.approx(expected, rel=1e-12)
    assert v.item() == pytest.approx(expected * special.expit(-mean * math.sqrt(LOGISTIC_VARIANCE) / std), rel=1e-12)
