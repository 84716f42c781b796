"""A kernel: a function of tensors that returns two moments, exact where its input is certain."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Partials = tuple[tuple[Tensor, Tensor], ...]
"""For each input of a kernel: the derivative of the mean and of the variance of its result."""


class Moments(NamedTuple):
    """A kernel's result: two moments and, if known in closed form, a function that returns their derivatives."""

    mean: Tensor
    variance: Tensor
    partials: Callable[[], Partials] | None = None


Kernel = Callable[..., Moments]


def at_finite_means(kernel: Kernel) -> Kernel:
    """The kernel, with the largest finite mean (which it can safely double) in place of an infinite one."""

    def bounded(mean: Tensor, *more: Tensor) -> Moments:
        largest = torch.finfo(mean.dtype).max / 8
        if torch.compiler.is_compiling():
            return kernel(torch.where(_is_infinite(mean), mean.clamp(-largest, largest), mean), *more)
        return kernel(mean.nan_to_num(math.nan, largest, -largest), *more)

    return bounded


def exact_where_certain(
    moments: Moments, certain: Tensor | None, noisy: bool, inputs: tuple[Tensor, ...], differentiated: bool = False
) -> tuple[Tensor, Tensor]:
    """The moments, with the plain function and no variance where the input is certain."""
    mean, variance = moments.mean, moments.variance
    if certain is None:
        return mean, variance
    sure = inputs[1] == 0
    known, none = certain, torch.zeros_like(variance)
    if differentiated:  # zeros, but with the derivatives of the kernel
        known, none = (x + (y - y.detach()).nan_to_num(0.0) for x, y in ((known, mean), (none, variance)))
    mean = torch.where(sure | _is_infinite(inputs[0]), known, mean)
    return mean, variance if noisy else torch.where(sure, none, variance)


def _is_infinite(x: Tensor) -> Tensor:
    """Where a number is infinite; inductor's vector code for CPUs tests this slowly, so compiled code compares."""
    return x.abs() == math.inf if torch.compiler.is_compiling() else x.isinf()


def flat_partials(moments: Moments) -> list[Tensor]:
    """Return the partial derivatives in a row, or none where a kernel has no closed form for them."""
    if moments.partials is None:
        return []
    # every output of an autograd function must be a separate tensor; a finite one, or a zero cotangent becomes NaN
    largest = torch.finfo(moments.mean.dtype).max
    return [d.expand_as(moments.mean).clamp(-largest, largest) for pair in moments.partials() for d in pair]
