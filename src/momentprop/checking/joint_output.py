"""The units of the final output together: their correlations, and the class posteriors that use them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from momentprop.kernels import joint_posterior
from momentprop.values import Joint, Normal
from momentprop.values.uncertain import Uncertain


@dataclass
class Correlations:
    """The correlations of the output units of every item, by draws and by methods; None is independence."""

    truth: Tensor  # shape: (items, units, units)
    varies: Tensor  # which units vary in the draws; shape: (items, units)
    methods: dict[str, Tensor | None]


class JointOutput:
    """Accumulates the covariance of the output units of every item over draws, if a method tells it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = {name: value for name, value in values.items() if isinstance(value, Uncertain)}
        self.items = next((value for value in self.values.values() if isinstance(value, Joint)), None)
        self.count = 0
        self.mean: Tensor = torch.zeros(())
        self.products: Tensor = torch.zeros(())  # of deviations from the mean, summed

    def add(self, draws: Tensor) -> None:
        """Add draws, stacked along the first dimension."""
        if self.items is None or self.items.units < 2:
            return
        rows = torch.stack([self.items.by_items(draw) for draw in draws.double()], 1)  # shape: (items, draws, units)
        rows = torch.where(rows.isfinite(), rows, 0.0)  # a masked unit does not vary
        count, mean = rows.shape[1], rows.mean(1)
        centred = rows - mean.unsqueeze(1)
        shift, total = mean - self.mean, self.count + count
        between = shift.unsqueeze(-1) * shift.unsqueeze(-2) * (self.count * count / total)
        self.products = self.products + centred.mT @ centred + between
        self.mean = self.mean + shift * (count / total)
        self.count = total

    def correlations(self) -> Correlations | None:
        """The correlations, if a method tells them and there are several units."""
        if not self.count:
            return None
        variance = self.products.diagonal(dim1=-2, dim2=-1)
        told = {name: _correlation(value) for name, value in self.values.items()}
        return Correlations(_scaled(self.products).cpu(), (variance > 0).cpu(), told)


def _correlation(value: Any) -> Tensor | None:
    if not isinstance(value, Joint):
        return None
    found = value.covariance.double()
    return _scaled(found if found.ndim == 3 else found.unsqueeze(0)).cpu()


def _scaled(covariance: Tensor) -> Tensor:
    """The correlations of a covariance; those of a unit that does not vary are zero."""
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(variance > 0, variance, torch.inf).rsqrt()
    return covariance * scale.unsqueeze(-1) * scale.unsqueeze(-2)


def marginal(value: Any) -> Any:
    """The units of a joint value, each by itself; another value stays."""
    return Normal.of(value.loc, value.variance) if isinstance(value, Joint) else value


def log_posterior(value: Joint, dim: int) -> Tensor:
    """The logarithms of class probabilities in float64, with the classes, which lie along a dimension, last."""
    return joint_posterior.log_posterior(value.loc.double().movedim(dim, -1), _of_rows(value, dim))


def _of_rows(value: Joint, dim: int) -> Tensor:
    """The covariance of the classes of every row in float64, where an item may have several rows."""
    covariance = value.covariance.double()
    covariance = covariance if covariance.ndim == 3 else covariance.unsqueeze(0)
    items, units = covariance.shape[:2]
    number = torch.arange(items * units, device=covariance.device).reshape(items, units)
    number = value.of_items(number).movedim(dim, -1)  # of every unit, over all items; shape: (*rows, classes)
    item, unit = number[..., 0, None, None] // units, number % units
    return covariance[item, unit.unsqueeze(-1), unit.unsqueeze(-2)]
