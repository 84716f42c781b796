"""Images with labels, in tensors that may be larger than memory.

>>> from momentprop.data import load
>>> data = load("digits")
>>> data.train.images.shape, data.train.images.dtype, data.classes[:3]
(torch.Size([5000, 1, 28, 28]), torch.uint8, ('0', '1', '2'))
>>> images, labels = data.normalized().train.batch(range(64))
>>> images.dtype, labels.dtype
(torch.float32, torch.int64)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK = 4096  # images per step of the streaming pass


class Indices(NamedTuple):
    """Two disjoint, sorted sets of positions in the training images."""

    train: Tensor
    validation: Tensor


@dataclass(frozen=True, eq=False)
class Split(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """The images and labels of one split, ready for a `torch.utils.data.DataLoader`.

    Images are stored as bytes and become floating-point numbers on access: in [0, 1], or normalized to
    `(image - mean) / std` for each channel where `mean` and `std` are given.
    """

    images: Tensor  # shape: (n, channels, height, width), uint8, often mapped from a file
    labels: Tensor  # shape: (n,), int64
    mean: Tensor | None = None  # shape: (channels,)
    std: Tensor | None = None  # shape: (channels,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._floats(self.images[index]), self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(*self.batch(indices), strict=True))

    def batch(self, indices: Tensor | Sequence[int] | slice | None = None) -> tuple[Tensor, Tensor]:
        """Return the images at these positions as float32 numbers, and their labels; by default all of them."""
        if indices is None:
            indices = slice(None)
        elif not isinstance(indices, slice):
            indices = torch.as_tensor(indices, device=self.labels.device)
        return self._floats(self.images[indices]), self.labels[indices]

    def to(self, device: torch.device | str) -> "Split":
        """Return the split with all of its tensors on a device."""
        mean, std = (None if tensor is None else tensor.to(device) for tensor in (self.mean, self.std))
        return Split(self.images.to(device), self.labels.to(device), mean, std)

    def _floats(self, images: Tensor) -> Tensor:
        values = images.float() / 255
        if self.mean is None or self.std is None:
            return values
        return values.sub_(self.mean[:, None, None]).div_(self.std[:, None, None])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set for classification: training images, test images and the names of the classes."""

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split

    @cached_property
    def mean(self) -> Tensor:
        """The mean of each channel of the training images, scaled to [0, 1]."""
        return self._statistics[0]

    @cached_property
    def std(self) -> Tensor:
        """The standard deviation of each channel of the training images, scaled to [0, 1]."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        return channel_statistics(self.train.images)

    def normalized(self) -> "Dataset":
        """Return the data set normalized to zero mean and unit variance in each channel of the training images."""
        mean, std = self.mean, self.std
        std = torch.where(std > 0, std, 1.0)  # a channel that never varies is only shifted
        return replace(self, train=replace(self.train, mean=mean, std=std), test=replace(self.test, mean=mean, std=std))

    def to(self, device: torch.device | str) -> "Dataset":
        """Return the data set with both splits on a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def validation_split(self, fraction: float = 0.1, seed: int = 0) -> Indices:
        """Return a random split of the training positions: some for training, and a fraction for validation.

        The same seed always gives the same split. The paper sets 10 % of the training images aside.

        >>> from momentprop.data import load
        >>> [len(indices) for indices in load("digits").validation_split()]
        [4500, 500]
        """
        if not 0 <= fraction < 1:
            raise ValueError(f"the fraction for validation must be at least 0 and less than 1, but is {fraction}")
        total = len(self.train)
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        count = round(fraction * total)
        return Indices(train=order[count:].sort().values, validation=order[:count].sort().values)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of byte images, scaled to [0, 1], in one streaming pass.

    The pass counts each of the 256 values, so the sums are exact integers for any number of images.
    """
    channels = images.shape[1]
    counts = torch.zeros(channels, 256, dtype=torch.int64)
    for part in images.split(_CHUNK):
        for channel in range(channels):
            counts[channel] += torch.bincount(part[:, channel].flatten(), minlength=256).cpu()
    values = torch.arange(256, dtype=torch.float64) / 255
    share = counts.double() / counts.sum(1, keepdim=True)
    mean = share @ values
    variance = (share * (values - mean[:, None]) ** 2).sum(1)
    return mean.to(images.device, torch.float32), variance.sqrt().to(images.device, torch.float32)
