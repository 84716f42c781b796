"""The current stream of a GPU as a number, which every launch of a kernel needs: torch's public way makes an object."""

import functools
from collections.abc import Callable

import torch

from momentprop.torch_compat.guard import known


@functools.cache
def stream_of() -> Callable[[int], int]:
    """Return the function from a GPU's index to its current stream."""
    found: Callable[[int], int] = known(
        "torch._C._cuda_getCurrentRawStream",
        otherwise=lambda device: torch.cuda.current_stream(device).cuda_stream,
        loses="small operations on a GPU are slower",
    )
    return found
