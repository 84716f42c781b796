"""Linear maps along each of the last dimensions in turn."""

from collections.abc import Sequence

from torch import Tensor


def applied(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Apply one matrix (output, input) along each of the last dimensions."""
    for back, matrix in enumerate(reversed(matrices), 1):
        x = (x.movedim(-back, -1) @ matrix.mT).movedim(-1, -back)
    return x.contiguous()
