"""Augmented training images: each is mirrored and shifted at random, differently in every epoch."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.data import Split

SHIFT = 4
"""The largest shift in pixels; the border is filled with zeros, the mean of normalized images."""


class Augmented(Split):
    """A split whose batches are mirrored with probability 1/2, and shifted by up to `SHIFT` pixels each way.

    The draws come from torch's own generator on the device of the images. A checkpoint keeps its state, so a resumed
    run makes the same draws.
    """

    def batch(self, indices: Tensor | Sequence[int] | slice | None = None) -> tuple[Tensor, Tensor]:
        """Return the images at these positions, augmented, and their labels."""
        images, labels = super().batch(indices)
        return shifted(mirrored(images)), labels

    def to(self, device: torch.device | str) -> "Augmented":
        """Return the split with all of its tensors on a device."""
        moved = super().to(device)
        return Augmented(moved.images, moved.labels, moved.mean, moved.std)


def mirrored(images: Tensor) -> Tensor:
    """Mirror each image with probability 1/2."""
    chosen = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(chosen, images.flip(-1), images)


def shifted(images: Tensor) -> Tensor:
    """Shift each image by whole pixels, up to `SHIFT` in each direction."""
    count, channels, height, width = images.shape
    padded = F.pad(images, (SHIFT,) * 4)
    rows, columns = (
        torch.randint(2 * SHIFT + 1, (count, 1), device=images.device) + torch.arange(size, device=images.device)
        for size in (height, width)
    )
    items = torch.arange(count, device=images.device)[:, None, None, None]
    planes = torch.arange(channels, device=images.device)[:, None, None]
    return padded[items, planes, rows[:, None, :, None], columns[:, None, None, :]]
