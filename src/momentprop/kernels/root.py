r"""A root of a covariance matrix that may be singular: $S$ symmetric with $S S = \Sigma$."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


def root(covariance: Tensor) -> Tensor:
    r"""The symmetric positive semidefinite root of matrices in the last two dimensions.

    Negative eigenvalues, which only rounding makes, are cut to zero. The derivative solves $S\,dS + dS\,S = d\Sigma$,
    which equal eigenvalues do not disturb. Between directions without variance it is zero: there the derivative of a
    covariance matrix is zero as well, because it is at its minimum. It cannot be differentiated twice.
    """
    wide = torch.promote_types(covariance.dtype, torch.float32)
    return _Root.apply(covariance.to(wide))[0].to(covariance.dtype)  # type: ignore[no-untyped-call, no-any-return]


class _Root(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        symmetric = (covariance + covariance.mT) / 2
        eigenvalues, vectors = torch.linalg.eigh(symmetric)
        roots = eigenvalues.clamp(min=0.0).sqrt()
        return vectors * roots.unsqueeze(-2) @ vectors.mT, roots, vectors

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        roots, vectors = ctx.saved_tensors
        sums = roots.unsqueeze(-1) + roots.unsqueeze(-2)
        inside = vectors.mT @ ((gradient + gradient.mT) / 2) @ vectors
        inside = torch.where(sums > 0, inside / torch.where(sums > 0, sums, 1.0), 0.0)
        return vectors @ inside @ vectors.mT
