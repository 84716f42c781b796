"""The paper's maximum of two."""

import math

import pytest
import torch

from momentprop import paper


def test_the_fitted_maximum_has_the_stated_error_or_none() -> None:
    a = torch.linspace(-6, 6, 2401, dtype=torch.float64)
    one = torch.ones_like(a)
    fitted, exact = paper.max_fitted(a, one, 0 * a, one), paper.max_normal(a, one, 0 * a, one)
    assert ((fitted.variance / exact.variance).sqrt() - 1).abs().max().item() == pytest.approx(0.21, abs=0.01)
    certain = paper.max_fitted(a, 0 * a, 0 * a, 0 * a)
    assert torch.equal(certain.mean, a.clamp(min=0))
    assert torch.equal(certain.variance, 0 * a)


def test_the_maximum_with_covariance_is_the_printed_formula() -> None:
    m1, v1, m2, v2, c = (torch.tensor(number, dtype=torch.float64) for number in (0.3, 2.0, -0.5, 0.7, 0.4))
    s = (v1 + v2 - 2 * c).sqrt()
    a = (m1 - m2) / s
    phi, density = torch.special.ndtr(a), torch.exp(-0.5 * a * a) / math.sqrt(2 * math.pi)
    result = paper.max_normal(m1, v1, m2, v2, c)
    torch.testing.assert_close(result.mean, m2 + s * (a * phi + density))
    printed = v1 * phi + v2 * (1 - phi) + s**2 * (paper.rectified_variance(a) - phi)
    torch.testing.assert_close(result.variance, printed)
