"""The covariance of outputs, by one backward pass for each of them."""

from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.births import Birth, Births
from momentprop.correlation.gates import Gates


def covariance(births: Births, gates: Gates, outputs: Tensor) -> Tensor:
    """Return the covariance of outputs of shape (items, units), of shape (items, units, units)."""
    items, units = outputs.shape
    with gates.shut(), torch.enable_grad():
        rows = [
            torch.autograd.grad(
                outputs[:, unit].sum(), births.edges, retain_graph=True, create_graph=gates.tracked, allow_unused=True
            )
            for unit in range(units)
        ]
    total = outputs.new_zeros(items, units, units)
    for position, birth in enumerate(births.found):
        grads = [row[position] for row in rows]
        if all(grad is None for grad in grads):
            continue
        zeros = outputs.new_zeros(birth.shape)
        total = total + _added(birth, torch.stack([zeros if grad is None else grad for grad in grads], 1))
    return total


def _added(birth: Birth, slopes: Tensor) -> Tensor:
    total: Any = 0.0
    for a, weight in birth.terms(slopes.transpose(0, 1)):
        rows = a.transpose(0, 1).flatten(2)
        weighted = rows if weight is None else rows * weight.flatten(1).unsqueeze(1)
        total = total + weighted @ rows.mT
    return total
