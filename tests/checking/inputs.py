"""Inputs of a check, and a method that changes its outputs."""

import torch

from momentprop import propagate

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))


def changed(change):
    """A method that changes the output of AP2."""

    def method(model, x, *, record, **options):
        y, inside = propagate(model, x, record=True, **options, covariance=False)
        return (change(y), inside) if record else change(y)

    return method
