"""Class posteriors as functions of a mean and a variance."""

from collections.abc import Callable

import torch
from torch import Tensor

from momentprop import Normal, functional

METHODS = ("race", "fast", "normal", "logistic", "simplified", "centred")


def log_posterior(method: str) -> Callable[[Tensor, Tensor], Tensor]:
    def log_q(mean: Tensor, variance: Tensor) -> Tensor:
        return functional.class_posterior(Normal.of(mean, variance), method=method).logits  # type: ignore[arg-type]

    return log_q


def inputs(*shape: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return mean.requires_grad_(), (scale * (torch.rand(shape, generator=generator).double() + 0.2)).requires_grad_()
