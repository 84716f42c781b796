"""The stored and verified content of a split, in bytes."""

from typing import NamedTuple

from torch import Tensor


class Arrays(NamedTuple):
    """The decoded content of one split."""

    images: Tensor  # shape: (n, channels, height, width), uint8
    labels: Tensor  # shape: (n,), uint8
