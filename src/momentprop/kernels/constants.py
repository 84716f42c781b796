"""Constants that kernels need as tensors."""

from typing import Any

import torch
from torch import Tensor

_made: dict[tuple[Any, torch.dtype, torch.device], Tensor] = {}


def constant(numbers: tuple[Any, ...], like: Tensor) -> Tensor:
    """Numbers, or tuples of them, as a tensor with another's type and device; do not write to it.

    Eager mode makes it once: a copy from the host makes a GPU wait and cannot be part of a CUDA graph.
    """
    if torch.compiler.is_compiling():
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)
    key = numbers, like.dtype, like.device
    if key not in _made:
        with torch.inference_mode(False):
            _made[key] = torch.tensor(numbers, dtype=like.dtype, device=like.device)
    return _made[key]
