r"""A symmetric root $S$ of a covariance matrix that can be singular, $S S = \Sigma$."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def root(covariance: Tensor) -> Tensor:
    r"""The symmetric positive semidefinite root of matrices in the last two dimensions.

    Negative eigenvalues come only from rounding and are cut to zero. The derivative solves $S\,dS + dS\,S = d\Sigma$,
    which equal eigenvalues do not disturb. Between directions without variance it is zero, as is the derivative of the
    covariance matrix there, at its minimum.
    """
    wide = torch.promote_types(covariance.dtype, torch.float32)
    return _Root.apply(covariance.to(wide))[0].to(covariance.dtype)  # type: ignore[no-untyped-call, no-any-return]


def triangular_root(factors: Tensor, variance: Tensor) -> Tensor:
    r"""The lower triangular $L$ with $LL^\top = F^\top F + \operatorname{diag}(d)$, of factors (..., K, n) and $d$."""
    noise = torch.diag_embed(variance.sqrt())
    upper = torch.linalg.qr(torch.cat([factors, noise], -2), mode="r")[1]
    signs = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    lower: Tensor = (upper * signs.unsqueeze(-1)).mT
    return lower


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
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        return _Solve.apply(gradient, *ctx.saved_tensors)  # type: ignore[no-untyped-call]


class _Solve(torch.autograd.Function):
    r"""The symmetric $X$ with $SX + XS = G$, for the symmetric part of $G$."""

    generate_vmap_rule = True

    @staticmethod
    def forward(given: Tensor, symmetric: Tensor, roots: Tensor, vectors: Tensor) -> Tensor:
        sums = roots.unsqueeze(-1) + roots.unsqueeze(-2)
        inside = vectors.mT @ ((given + given.mT) / 2) @ vectors
        inside = torch.where(sums > 0, inside / torch.where(sums > 0, sums, 1.0), 0.0)
        return vectors @ inside @ vectors.mT

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        symmetric, roots, vectors, solution = ctx.saved_tensors
        back: Tensor = _Solve.apply(gradient, symmetric, roots, vectors)  # type: ignore[no-untyped-call]
        return back, -(back @ solution + solution @ back), None, None
