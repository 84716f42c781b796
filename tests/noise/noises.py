"""Noises with their equals in scipy, and an integral that knows where they are not smooth."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch.distributions import Distribution, Exponential, Gamma, Gumbel, Laplace, Uniform
from torch.distributions import Normal as NormalDistribution

from momentprop.distributions import LogisticDistribution

NAMES = ("logistic", "normal", "uniform", "laplace", "gumbel")

# a noise, the same in scipy, and the kinks of its distribution function
NOISES: dict[str, tuple[str | Distribution, Any, tuple[float, ...]]] = {
    "logistic": ("logistic", stats.logistic(), ()),
    "normal": ("normal", stats.norm(), ()),
    "uniform": ("uniform", stats.uniform(-0.5, 1), (-0.5, 0.5)),
    "laplace": ("laplace", stats.laplace(), (0.0,)),
    "gumbel": ("gumbel", stats.gumbel_r(), ()),
    "wide logistic": (LogisticDistribution(1.0, 3.0), stats.logistic(1, 3), ()),
    "wide normal": (NormalDistribution(1.0, 3.0), stats.norm(1, 3), ()),
    "wide uniform": (Uniform(-2.0, 6.0), stats.uniform(-2, 8), (-2.0, 6.0)),
    "narrow laplace": (Laplace(1.0, 0.25), stats.laplace(1, 0.25), (1.0,)),
    "narrow gumbel": (Gumbel(1.0, 0.25), stats.gumbel_r(1, 0.25), ()),
    "exponential": (Exponential(0.5), stats.expon(scale=2), (0.0,)),
    "gamma": (Gamma(torch.tensor(2.0).double(), torch.tensor(1.0).double()), stats.gamma(2), (0.0,)),
}
LEGENDRE = np.polynomial.legendre.leggauss(24)


def integral_of(f: Callable[[Any], Any], edges: Any) -> float:
    """The integral between the first and the last edge of a function that is smooth between neighbours."""
    x, w = LEGENDRE
    left, right = edges[:-1, None], edges[1:, None]
    return float((f((left + right) / 2 + (right - left) / 2 * x) * (right - left) / 2 * w).sum())
