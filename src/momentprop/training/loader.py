"""A loader as training examples: its batches are read one at a time, again in every epoch."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from momentprop.errors import UserError
from momentprop.training.distributed import Ranks
from momentprop.training.training_examples import Examples, Pairs, as_examples, first_seed, order

_AT_ONCE = 500
"""The number of examples of a part, if they are kept on the device."""


class Loader:
    """A `DataLoader`, or any other iterable of batches (inputs, targets) that has a length.

    It is read with its own random numbers, which depend only on the seed and the epoch. So the order of the examples
    and what a data set draws do not depend on the noise of the training, and a run that was killed reads the same
    again.
    """

    def __init__(self, batches: Any, device: torch.device | None = None) -> None:
        self.batches, self.device = batches, device or torch.device("cpu")
        if hasattr(getattr(batches, "sampler", None), "num_replicas"):
            raise UserError(
                "the loader divides its examples among the processes, but `fit` divides every batch: leave out its "
                "DistributedSampler"
            )
        try:
            self.count = len(batches)
        except TypeError as error:
            raise UserError(
                f"the loader has no length ({error}): give a data set of known length, or a list of its batches"
            ) from error

    def __len__(self) -> int:
        """The number of batches."""
        return self.count

    @property
    def size(self) -> int:
        """The number of examples in a full batch, if the loader knows it."""
        return getattr(self.batches, "batch_size", None) or 1

    def to(self, device: torch.device) -> "Loader":
        """Return the same loader, whose batches go to a device."""
        return Loader(self.batches, device)

    def epoch(self, seed: int, epoch: int, start: int = 0) -> Iterator[Pairs]:
        """Read the batches of an epoch, without the first `start` of them."""
        state = torch.Generator().manual_seed(first_seed(seed, epoch)).get_state()
        reading = None
        for number in itertools.count():
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                reading = iter(self.batches) if reading is None else reading
                batch = next(reading, None)
                state = torch.get_rng_state()
            if batch is None:
                if number == 0:
                    raise UserError(f"the loader gave no batches in epoch {epoch + 1}")
                return
            if number >= start:
                yield _pair(batch).to(self.device)


def _pair(batch: Any) -> Pairs:
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        return Pairs(*batch)
    inside = f" of {', '.join(type(part).__name__ for part in batch)}" if isinstance(batch, tuple | list) else ""
    raise UserError(
        f"a loader must give pairs (inputs, targets) of tensors, but gave a {type(batch).__name__}{inside}: write a "
        "`collate_fn`"
    )


def as_training(data: Any) -> Examples | Loader:
    """Convert what `fit` takes: examples to keep on the device, or a loader whose batches are read."""
    if isinstance(data, Loader):
        return data
    if hasattr(data, "__iter__") and not hasattr(data, "__getitem__") and not hasattr(data, "batch"):
        return Loader(data)
    return as_examples(data)


def parts(examples: Examples | Loader, ranks: Ranks) -> Iterator[tuple[Tensor, Tensor]]:
    """All inputs and targets of this process, in parts."""
    if isinstance(examples, Loader):
        for batch in examples.epoch(0, 0):
            mine = ranks.shard(torch.arange(len(batch), device=ranks.device))
            if len(mine):
                yield batch.batch(mine)
    else:
        for indices in ranks.shard(torch.arange(len(examples), device=ranks.device)).split(_AT_ONCE):
            yield examples.batch(indices)


def some_inputs(examples: Examples | Loader, count: int, seed: int, epoch: int, device: torch.device | str) -> Tensor:
    """The inputs of that many examples, or of all if there are fewer; seed and epoch choose them."""
    if not isinstance(examples, Loader):
        return examples.batch(order(len(examples), seed, epoch)[:count].to(device))[0]
    found: list[Tensor] = []
    for batch in examples.epoch(seed, epoch):
        found.append(batch.inputs)
        if sum(map(len, found)) >= count:
            break
    return torch.cat(found)[:count]
