r"""The logarithm of a sum of exponentials."""

from collections.abc import Sequence
from typing import Any

import torch

from momentprop.dispatch.registry import mixing
from momentprop.kernels import logsumexp as kernels
from momentprop.kernels.fuse import fused
from momentprop.rules.reductions.maximum import over_dims
from momentprop.values import Normal


@mixing("logsumexp", on=Normal, along="dim")
def logsumexp(input: Normal, dim: int | Sequence[int], keepdim: bool = False) -> Normal:
    r"""Moments of $\log\sum_k e^{X_k}$ for independent elements along one or several dimensions.

    With standard Gumbel noises $G_k$, the largest of $X_k + G_k$ is $T = \log\sum_k e^{X_k} + G$ with one such noise
    $G$. So $\mu' = E\,T - \gamma$ and $\sigma'^2 = \mathrm{Var}\,T - \pi^2/6$, where
    $P(T \le t) = \prod_k E\exp(-e^{X_k - t})$ is integrated numerically. Where that difference would cancel, the
    cumulants of the sum replace it; see `kernels.logsumexp`. The mean minus a score is the expected cross-entropy
    $E[-\log\mathrm{softmax}(X)_y]$, an upper bound on the class posterior's cross-entropy.

    Error: 3e-4 of $\sigma'$ in mean and deviation for up to 100 elements; for 1000 equal ones 1e-3 and 0.01, for 10,000
    0.01 and 0.2; 1 % of a sure winner's expected cross-entropy
    Source: the Gumbel race; Fenton and Wilkinson
    """

    def along_last(last: Any) -> Any:
        if last.shape[-1] == 1:
            return last.squeeze(-1)
        if last.loc.numel() == 0:  # the logarithm of an empty sum
            mean = torch.logsumexp(last.loc, -1)
            return input.of(mean, torch.zeros_like(mean))
        return input.of(*fused(kernels.logsumexp, None, last.loc, last.variance))

    return over_dims(along_last, input, dim, keepdim)  # type: ignore[no-any-return]
