r"""Finds the operations that mix units in a model; their results are corrected."""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from momentprop.correlation.layout import Layout, is_settled, mixes
from momentprop.dispatch import Call
from momentprop.dispatch.context import Watcher
from momentprop.torch_compat.replica import Replica


@dataclass(frozen=True)
class Place:
    """A mixing operation of a model: the path of its module, its name, which call of it there, and its channels.

    `rank` is the rank of the map between its channels (see `calibration.channel_map`), once fitted.
    """

    path: str
    op: str
    call: int
    dims: tuple[int, ...]
    channels: int
    corrected: bool = True
    rank: int = 0

    def __str__(self) -> str:
        call = f" (call {self.call})" if self.call > 1 else ""
        return f"{self.op!r}{call} in {self.path!r}" if self.path else f"{self.op!r}{call}"

    def shape(self, like: Tensor) -> list[int] | None:
        """The shape in which numbers for all channels broadcast to a result, or None if they do not fit it."""
        depth, sizes = min(self.dims, default=0), like.shape
        if -depth > len(sizes):
            return None
        found = [sizes[dim] if dim in self.dims else 1 for dim in range(depth, 0)]
        return found if math.prod(found) == self.channels else None

    def arranged(self, x: Tensor, inputs: int) -> Tensor:
        """The elements of a result by row, channel and position; the rows are the batch of `inputs`, if it is found."""
        channels = [dim % x.ndim for dim in self.dims]
        others = [dim for dim in range(x.ndim) if dim not in channels]
        rows = [dim for dim in others if x.shape[dim] == inputs][:1]
        rest = [dim for dim in others if dim not in rows]
        count = x.shape[rows[0]] if rows else 1
        return x.permute((*rows, *channels, *rest)).reshape(count, self.channels, -1)


class Paths:
    """Tracks the path of the running module."""

    def __init__(self) -> None:
        self.stack: list[str] = []

    def on(self, replica: Replica) -> contextlib.AbstractContextManager[None]:
        """Follow the modules of a replica, while it runs inside this context."""
        if not isinstance(replica.model, nn.Module):
            return contextlib.nullcontext()
        modules = list(replica.module.named_modules())
        return replica.hooked(
            after=[(module, self._leaving) for _, module in modules],
            before=[(module, self._entering(path)) for path, module in modules],
        )

    @property
    def current(self) -> str:
        """The path of the innermost module."""
        return self.stack[-1] if self.stack else ""

    def _entering(self, path: str) -> Callable[..., None]:
        return lambda *_: self.stack.append(path)

    def _leaving(self, *_: Any) -> None:
        self.stack.pop()


class Counting(Watcher):
    """A watcher that reports the place and the call number of every mixing operation."""

    def __init__(self) -> None:
        self.paths = Paths()
        self.calls: dict[tuple[str, str], int] = {}

    def on(self, replica: Replica) -> contextlib.AbstractContextManager[None]:
        """Follow the modules of the replica that runs."""
        return self.paths.on(replica)

    def start(self, inputs: Sequence[Any]) -> None:
        """Count from the beginning."""
        self.calls = {}
        self.paths.stack.clear()

    def after(self, call: Call, result: Any) -> Any:
        """Show mixing operations to `seen`."""
        if mixes(call, result):
            key = (self.paths.current, call.op)
            self.calls[key] = self.calls.get(key, 0) + 1
            self.seen((*key, self.calls[key]), call, result)
        return result

    def seen(self, key: tuple[str, str, int], call: Call, result: Any) -> None:
        """Handle a mixing operation."""
        raise NotImplementedError


class Survey(Counting):
    """Finds all places of a model in one pass of AP2."""

    def __init__(self) -> None:
        super().__init__()
        self.layout = Layout()
        self.places: list[Place] = []

    def seen(self, key: tuple[str, str, int], call: Call, result: Any) -> None:
        """Note the place."""
        dims = self.layout.channels(call, result)
        if is_settled(result):
            self.places.append(Place(*key, (), 1, corrected=False))
        else:
            self.places.append(Place(*key, dims, math.prod(result.shape[dim] for dim in dims)))
