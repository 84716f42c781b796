"""What cannot be followed, and what to write instead."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.torch_compat.modules import BatchNorm
from momentprop.values import Joint

FACTORIZED = "`covariance=False` for AP2 as in the paper, which treats units as independent"
"""What remains where correlations cannot be followed."""


def require_alike(inputs: Sequence[Joint], batch_dim: int | None) -> None:
    """Refuse inputs whose items lie elsewhere, or share sources with different items of another input."""
    items: dict[str, tuple[int, ...]] = {}
    for x in inputs:
        if batch_dim is not None and x.batch_dim not in (None, batch_dim % x.ndim):
            raise ValueError(
                f"the items of a Joint argument lie along dimension {x.batch_dim}: write `batch_dim={x.batch_dim}`"
            )
        for event, of, _ in x.sources:
            if items.setdefault(event, of) != of:
                raise ValueError(
                    "two Joint arguments come from the same value, but their items do not correspond: give them as one "
                    "argument, or `batch_dim=None`"
                )


def require_same(found: Tensor, wanted: Tensor) -> None:
    """Refuse items whose means alone differ from those in their batch."""
    slack = 1e3 * torch.finfo(found.dtype).eps
    largest = float(wanted.detach().abs().max()) if wanted.numel() else 0.0
    if not torch.allclose(found.detach(), wanted.detach(), rtol=slack, atol=slack * largest):
        raise RuntimeError(
            "an item alone gives another result than in its batch: the items interact, or the model has changed since. "
            "So correlations cannot be followed item by item: give one item at a time, `batch_dim=None` to take the "
            f"batch as one item, or {FACTORIZED}"
        )


def refuse_batch_statistics(model: Any) -> None:
    """Refuse a model that uses batch statistics."""
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
            raise ValueError(
                f"a {type(module).__name__} takes the statistics of the batch, so that its items interact and "
                f"correlations cannot be followed: write `model.eval()`, or {FACTORIZED}"
            )
