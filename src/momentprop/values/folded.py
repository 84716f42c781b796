"""Several draws, one after the other along the first dimension of one tensor."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from momentprop.torch_compat.modes import bare
from momentprop.values.certain import Sample


class NotFolded(Exception):  # noqa: N818 (nobody outside sees it)
    """Draws cannot be made as one batch."""


class TooLarge(NotFolded):
    """Fewer draws may fit."""


class Fold:
    """A batch of draws in the making: their number, the bytes made so far, and whether something was refused."""

    def __init__(self, count: int, most: int) -> None:
        self.count = count
        self.most = most  # bytes, after which the batch is given up
        self.bytes = 0
        self.refused = False  # also where the model has caught the error

    def refuse(self, what: str) -> NoReturn:
        """Give up, because an operation is not known to keep the draws apart."""
        self.refused = True
        raise NotFolded(f"{what!r} may mix draws that lie in one batch")

    def value(self, tensor: Tensor) -> "Folded":
        """Return a tensor of draws that lie one after the other."""
        if not tensor.ndim or tensor.shape[0] % self.count:
            self.refuse("a result without items")
        self.bytes += tensor.nbytes
        if self.bytes > self.most and self.count > 1:
            self.refused = True
            raise TooLarge
        return Folded(tensor, self)

    def drawn(self, draws: Tensor) -> "Folded":
        """Return draws that are stacked along a new first dimension."""
        return self.value(draws.flatten(0, 1) if draws.ndim > 1 else draws.new_empty(()))

    def lifted(self, tensor: Tensor) -> "Folded":
        """Return a tensor that all draws share, repeated for each."""
        return self.drawn(self.stacked(tensor))

    def stacked(self, tensor: Tensor) -> Tensor:
        """Return a tensor that all draws share, expanded along a new first dimension."""
        return tensor.expand(self.count, *tensor.shape)


class Folded(Sample):
    """Draws of shape (b, ...) as one tensor of shape (draws * b, ...), which a model sees as one draw.

    The model finds the sizes of a single draw, and cannot read an element. Operations outside `momentprop.folding` are
    refused.
    """

    def __init__(self, folded: Tensor, fold: Fold) -> None:
        self.folded = folded
        self.fold = fold
        self.shared = False  # another value may lie in the same memory

    @classmethod
    def of(cls, *parts: Any) -> Self:
        """Refused: a value belongs to a fold."""
        raise NotFolded("of")

    @classmethod
    def without_rule(cls, function: Any, args: Any, kwargs: Any) -> Any:
        """Refuse an operation that the current fold has not seen."""
        raise NotFolded("without_rule")

    def each(self, function: Callable[[Tensor], Any]) -> "Folded":
        """Apply a function that moves or converts elements to every draw."""
        with bare():
            draws = torch.func.vmap(function)(self.unfolded())
        return Folded(draws.flatten(0, 1), self.fold)

    def unfolded(self) -> Tensor:
        """Return the draws along a new first dimension."""
        draws: Tensor = self.folded.unflatten(0, (self.fold.count, -1))
        return draws

    @property
    def leading(self) -> Tensor:
        """All draws, one behind the other."""
        return self.folded

    @property
    def shape(self) -> torch.Size:
        """The shape of one draw."""
        first, *rest = self.folded.shape
        return torch.Size([first // self.fold.count, *rest])

    def size(self, dim: int | None = None) -> Any:
        """Return the shape of one draw, or its size along a dimension."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Return the number of elements of one draw."""
        return self.shape.numel()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return self._refused()

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        self.fold.refuse("what asks for elements or memory")

    loc = property(_refused)
    nelement = numel
    stride = storage_offset = is_contiguous = sample = __bool__ = __array__ = __getstate__ = _refused
