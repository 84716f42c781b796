r"""Moments of functions that can oscillate, by a quadrature with as many panels as they need."""

import warnings

import torch
from torch import Tensor

from momentprop.kernels.moments import Kernel, Moments
from momentprop.kernels.quadrature import Function, quadrature
from momentprop.torch_compat.functorch import is_wrapped

_LEVELS = (40, 160, 640)  # panels of eight nodes, over 17 deviations
_FIXED = 64  # where code cannot look at the data
_AGREE = 1e-5  # of the deviation of the result


def oscillating(f: Function) -> Kernel:
    r"""The kernel of a function $f$ that can oscillate many times within a deviation.

    The number of panels grows fourfold until two results agree to 1e-5 of the deviation; a warning says if they never
    do. For $x \sin(\omega x)$ the error is below 1e-9 up to $\omega\sigma = 80$, where the warnings begin. Where code
    cannot look at the data (while compiling, in a CUDA graph or under `torch.func`), there are 64 panels, for an error
    of 1e-5 up to $\omega\sigma = 30$.
    """

    def kernel(mean: Tensor, variance: Tensor, *more: Tensor) -> Moments:
        if not _may_look_at(mean) or not _may_look_at(variance):
            return quadrature(f, quick=True, panels=_FIXED)(mean, variance, *more)
        found, *finer = (quadrature(f, quick=True, panels=panels) for panels in _LEVELS)
        moments = found(mean, variance, *more)
        for found in finer:
            coarse, moments = moments, found(mean, variance, *more)
            if bool(_agree(coarse, moments).all()):
                return moments
        warnings.warn(
            "an expression with `sin` or `cos` oscillates too often within one standard deviation of its input, so "
            "that its moments may be wrong: lower the variance, or use method='sample'",
            stacklevel=2,
        )
        return moments

    return kernel


def _may_look_at(tensor: Tensor) -> bool:
    if torch.compiler.is_compiling() or is_wrapped(tensor) or tensor.device.type == "meta":
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _agree(one: Moments, other: Moments) -> Tensor:
    apart = (one.mean - other.mean).abs() - 4 * torch.finfo(other.mean.dtype).eps * other.mean.abs()
    close = (apart <= _AGREE * other.variance.sqrt()) & (
        (one.variance - other.variance).abs() <= _AGREE * other.variance
    )
    return close | ~other.mean.isfinite() | ~other.variance.isfinite()
