"""Training examples, kept on one device: batches are gathered there, so no step waits for data."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from momentprop.errors import UserError


class Examples(Protocol):
    """The interface of training data, which `momentprop.data.Split` implements."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets at these positions."""
        ...

    def to(self, device: torch.device) -> "Examples":
        """Return the same examples on a device."""
        ...


@dataclass(frozen=True, eq=False)
class Pairs:
    """Two tensors, inputs and targets, of the same length."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise UserError(
                f"there are {len(self.inputs)} inputs, but {len(self.targets)} targets: give one target for each input"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets at these positions."""
        return self.inputs[indices], self.targets[indices]

    def to(self, device: torch.device) -> "Pairs":
        """Return the same examples on a device."""
        return Pairs(self.inputs.to(device), self.targets.to(device))


def as_examples(data: Any) -> Examples:
    """Convert examples, a pair of tensors, or a map-style data set, whose items are stacked."""
    if hasattr(data, "batch") and hasattr(data, "to"):
        return data  # type: ignore[no-any-return]
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        return Pairs(*data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        inputs, targets = zip(*(data[i] for i in range(len(data))), strict=True)
        return Pairs(*(torch.stack([torch.as_tensor(item) for item in part]) for part in (inputs, targets)))
    raise UserError(
        f"training takes a pair of tensors or a map-style data set, or a loader of batches, not a {type(data).__name__}"
    )


def first_seed(seed: int, epoch: int) -> int:
    """Return the seed of the order of an epoch."""
    return seed * 1_000_003 + epoch


def order(count: int, seed: int, epoch: int) -> Tensor:
    """Return a permutation of the examples that depends only on the seed and the epoch."""
    generator = torch.Generator().manual_seed(first_seed(seed, epoch))
    return torch.randperm(count, generator=generator)
