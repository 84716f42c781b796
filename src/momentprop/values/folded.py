"""Several draws that lie behind each other along the first dimension of one tensor."""

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from momentprop.values.certain import Sample


class NotFolded(Exception):  # noqa: N818 (nobody outside sees it)
    """Draws cannot be made as one batch."""


class Folded(Sample):
    """Draws of shape (b, ...) as one tensor of shape (draws * b, ...), which a model sees as one draw of shape (b, ...).

    So a model finds the sizes that it would find in a single draw, and cannot read an element. The operations are
    those of `momentprop.folding`; all others are refused.
    """

    folded: Tensor
    count: int = 0  # of the draws; set on every value

    @classmethod
    def behind(cls, tensor: Tensor, count: int) -> "Folded":
        """Return a tensor of draws that lie behind each other."""
        value = cls.of(tensor)
        value.count = count
        return value

    def __init_subclass__(cls) -> None:
        raise TypeError("a Folded has no types below it")

    @property
    def loc(self) -> Tensor:  # type: ignore[override]
        """Refused: it is no single draw."""
        raise NotFolded("loc")

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """The shape of one draw."""
        first, *rest = self.folded.shape
        return torch.Size([first // self.count, *rest])

    def size(self, dim: int | None = None) -> Any:
        """Return the shape of one draw, or its size along a dimension."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Return the number of elements of one draw."""
        return self.shape.numel()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise NotFolded("iter")

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        raise NotFolded("memory")

    nelement = numel
    stride = storage_offset = is_contiguous = sample = _refused

    def unfolded(self) -> Tensor:
        """Return the draws along a new first dimension."""
        return self.folded.unflatten(0, (self.count, -1))
