r"""Sums over the nodes of a quadrature: all nodes at once if that is cheap, otherwise one by one."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from momentprop.codegen.formula import recording
from momentprop.kernels.constants import constant

Terms = Callable[..., tuple[Tensor, ...]]

_SMALL_ON_CPU = 1 << 12  # elements of a tensor whose copies for all nodes fit in the cache
_SMALL_ELSEWHERE = 1 << 18  # where launching an operation costs more than running it


def total(rows: Iterable[Sequence[float]], terms: Terms, like: Tensor) -> list[Tensor]:
    r"""$\sum_i t_k(x_i, w_i, \dots)$ for every one of the `terms` $t_k$, over rows of numbers $(x_i, w_i, \dots)$.

    `terms` gets one row of numbers; for a small tensor, or a compiler that fuses the sum, it gets all rows at once, as
    columns that broadcast along a new first dimension. It must be elementwise in tensors shaped like `like`.
    """
    if not recording() and (torch.compiler.is_compiling() or _is_small(like)):
        columns = constant(tuple(zip(*rows, strict=True)), like)
        return [term.sum(0) for term in terms(*columns.reshape(*columns.shape, *[1] * like.ndim))]
    sums: list[Tensor] = []
    for row in rows:
        new = terms(*row)
        sums = [old + term for old, term in zip(sums, new, strict=True)] if sums else list(new)
    return sums


def _is_small(like: Tensor) -> bool:
    return like.numel() <= (_SMALL_ON_CPU if like.is_cpu else _SMALL_ELSEWHERE)
