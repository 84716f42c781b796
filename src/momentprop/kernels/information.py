r"""How much of the class's uncertainty is due to the logits' noise: $I = H(q) - E\,H(p)$.

Here $p = \mathrm{softmax}(X)$ with $X \sim N(\mu, \Sigma)$, $q = E\,p$, and $H$ is the entropy. The same number is
$$I = E\,f(X), \qquad f(x) = \sum_k p_k \log\frac{p_k}{q_k},$$
whose average is never negative and does not cancel where it is small. $E$ is the average over the points of
`kernels.joint_posterior`, for $q$ too. Any other distribution in place of $q$ would raise the average, so its
derivative drops out. With $r_k = \log p_k - \log q_k$ and $a_k = p_k(r_k - f)$, by the theorems of Bonnet and Price,
$$\frac{\partial I}{\partial\mu} = E\,a, \qquad
\frac{\partial I}{\partial\Sigma} = \tfrac12 E\big[\mathrm{diag}(a + p) - p a^\top - a p^\top - p p^\top\big].$$
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from momentprop.kernels.joint_posterior import by_spread, log_p_at, once, over_points, steps

ENOUGH = 1 << 14
"""The points for logits that vary much: the information needs less accuracy than probabilities do."""


def mutual_information(loc: Tensor, covariance: Tensor, points: int | None = None) -> Tensor:
    r"""$H(E\,p) - E\,H(p)$ in nats, for means of shape `(..., classes)` and covariances `(..., classes, classes)`.

    It is deterministic, never negative, exactly zero where the covariance is, and has first derivatives in reverse
    mode. `points` is rounded up to a power of two. By default it is 4096, and 16384 for items whose logits vary with a
    standard deviation of about 0.7 or more.

    Measured worst error with 16384 points over full, diagonal and singular covariances and ties, by the logits'
    deviation: for up to 10 classes 2.2e-4 nats up to 1, 1e-3 at 3 and 3e-3 at 10; for 30 classes 5e-4, 3e-3 and 5e-3.
    With 4096 it is 4e-4, 3e-3 and 4e-3, and 3e-3, 1.1e-2 and 4e-3; with 131072 it is 1e-4, 1.3e-4 and 5e-4 for 10
    classes.

    >>> mutual_information(torch.tensor([1.0, 0.0]), torch.tensor([[4.0, 4.0], [4.0, 4.0]]))  # both move alike
    tensor(0.)
    """
    return over_points(_Information.apply, loc, covariance, points, by_spread(ENOUGH))


class _Information(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(loc: Tensor, covariance: Tensor, root: Tensor, u: Tensor) -> Tensor:
        log_q = _log_q(loc, root, u)
        parts = [_relative(loc, root, some, log_q)[2].sum(-2) for some in steps(loc, u)]
        found = torch.cat(parts, -1).sum(-1) / len(u)
        certain = (root == 0).all(-1).all(-1)
        return torch.where(certain, 0.0, found.clamp(min=0.0))  # negative only by rounding

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        loc, covariance, root, u = ctx.saved_tensors
        log_q = _log_q(loc, root, u)
        by_loc, shares, pairs = torch.zeros_like(loc), torch.zeros_like(loc), torch.zeros_like(covariance)
        for some in steps(loc, u):
            p, r, f = _relative(loc, root, some, log_q)
            a = p * (r - f)
            by_loc, shares = by_loc + a.sum(-2), shares + p.sum(-2)
            mixed = p.mT @ (a + 0.5 * p)
            pairs = pairs + mixed + mixed.mT
        weight = grad.unsqueeze(-1) / len(u)
        by_covariance = 0.5 * weight.unsqueeze(-1) * (torch.diag_embed(by_loc + shares) - pairs)
        return *once(weight * by_loc, by_covariance, loc, covariance, grad), None, None


def _log_q(loc: Tensor, root: Tensor, u: Tensor) -> Tensor:
    parts = [torch.logsumexp(log_p_at(loc, root, some), -2) for some in steps(loc, u)]
    return torch.log_softmax(torch.logsumexp(torch.stack(parts), 0), -1)


def _relative(loc: Tensor, root: Tensor, u: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""$p$, $r$ and $f$ at some points; an excluded class has no part in them."""
    log_p = log_p_at(loc, root, u)
    r = torch.where(log_p == -torch.inf, 0.0, log_p - log_q.unsqueeze(-2))
    p = log_p.exp()
    return p, r, (p * r).sum(-1, keepdim=True)
