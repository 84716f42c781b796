"""The paper's forms of the logistic unit are as far off as their docstrings say."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from momentprop import paper
from tests import oracle
from tests.paper.logistic_units import tensors


def _laplace_cdf(z: Any, fn: Any) -> Any:
    return fn.where(z < 0, fn.exp(math.log(2) * fn.minimum(z, 0)) / 2, 1 - fn.exp(-math.log(2) * fn.maximum(z, 0)) / 2)


def _logistic(x: Any, fn: Any) -> Any:
    return fn.expit(x)


def _normal_cdf(x: Any, fn: Any) -> Any:
    return fn.ndtr(x)


@pytest.mark.parametrize("mean", [-12.0, -3.0, -0.5, 0.0, 2.0])
@pytest.mark.parametrize("std", [0.1, 1.0, 4.0, 30.0])
def test_pea_is_exact_for_the_laplace_distribution_function(mean: float, std: float) -> None:
    m, v = oracle.moments(_laplace_cdf, mean, std**2, kinks=(0.0,))
    assert paper.pea(*tensors(mean, std**2)).item() == pytest.approx(float(m), rel=1e-10)
    assert paper.logistic_variance_pea(*tensors(mean, std**2)).item() == pytest.approx(float(v), rel=1e-8)


def test_pea_survives_variances_at_which_the_printed_form_overflows() -> None:
    assert paper.pea(torch.tensor(1.0), torch.tensor(1e10)).item() == pytest.approx(0.5, abs=1e-4)


MEAN_ERRORS = {paper.ap1: 0.43, paper.ap2a: 0.0225, paper.ap2b: 0.0226, paper.mackay: 0.0157, paper.pea: 0.0234}


@pytest.mark.parametrize("approximation", MEAN_ERRORS, ids=lambda f: f.__name__)
def test_the_mean_of_the_logistic_unit_has_the_stated_error(
    approximation: Callable[[Tensor, Tensor], Tensor],
) -> None:
    mean, std = torch.meshgrid(
        torch.linspace(-10, 10, 81, dtype=torch.float64),
        torch.logspace(-1, 1.5, 26, dtype=torch.float64),
        indexing="ij",
    )
    truth = torch.from_numpy(oracle.moments(_logistic, mean.numpy(), std.numpy() ** 2)[0])
    worst = (approximation(mean, std**2) - truth).abs().max().item()
    assert worst == pytest.approx(MEAN_ERRORS[approximation], rel=0.03)
    assert f"{MEAN_ERRORS[approximation]}" in (approximation.__doc__ or "")


@pytest.mark.parametrize(
    ("approximation", "std", "error"),
    [
        (paper.logistic_variance_heuristic, 0.3, 0.025),
        (paper.logistic_variance_heuristic, 1.0, 0.20),
        (paper.logistic_variance_heuristic, 2.0, 0.40),
        (paper.logistic_variance_large, 2.0, 0.13),
        (paper.logistic_variance_large, 3.0, 0.021),
        (paper.logistic_variance_pea, 0.1, 0.62),
        (paper.logistic_variance_pea, 1.0, 0.18),
    ],
)
def test_the_variance_of_the_logistic_transform_has_the_stated_error(
    approximation: Callable[[Tensor, Tensor], Tensor], std: float, error: float
) -> None:
    mean = torch.linspace(-5, 5, 101, dtype=torch.float64)
    truth = torch.from_numpy(oracle.moments(_logistic, mean.numpy(), np.full(101, std**2))[1])
    ours = approximation(mean, torch.full_like(mean, std**2))
    assert ((ours / truth).sqrt() - 1).abs().max().item() == pytest.approx(error, rel=0.06)


def test_the_large_variance_formula_is_negative_where_stated() -> None:
    mean = torch.linspace(-5, 5, 101)
    assert paper.logistic_variance_large(mean, torch.full_like(mean, 0.09)).min() < 0


def test_the_probit_bound_holds() -> None:
    mean, variance = torch.linspace(-5, 5, 101, dtype=torch.float64), torch.full((101,), 2.0, dtype=torch.float64)
    truth = torch.from_numpy(oracle.moments(_normal_cdf, mean.numpy(), np.full(101, 2.0))[1])
    assert (paper.normal_cdf_variance_bound(mean, variance) > truth).all()
