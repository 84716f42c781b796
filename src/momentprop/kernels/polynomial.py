"""Polynomials with known coefficients."""

import torch
from torch import Tensor


def polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    r"""$\sum_k c_k x^k$ by Horner's scheme."""
    result = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result
