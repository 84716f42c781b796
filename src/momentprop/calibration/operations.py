r"""Which operations mix units, which dimensions of their results are channels, and where in a model they are.

An operation that adds or compares several random units treats them as independent, which is an error. Its result is
corrected. Elementwise functions of one value need no correction: their moments are right if those of their input are.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from momentprop.dispatch import values_in
from momentprop.dispatch.context import Watcher
from momentprop.rules.attention.notes import Product
from momentprop.values import Normal, Value

_WINDOWS = {
    f"{name}{dims}d": dims
    for name in ("conv", "conv_transpose", "avg_pool", "adaptive_avg_pool", "max_pool", "adaptive_max_pool")
    for dims in (1, 2, 3)
}
_PRODUCTS = frozenset("linear bilinear matmul mm bmm addmm baddbmm einsum".split())
_PAIRS = frozenset("add sub mul".split())
_SUMS = frozenset("sum mean".split())
_NORMS = {"layer_norm": True, "rms_norm": True, "group_norm": False, "instance_norm": False}  # channels last?
_ATTENTION = "scaled_dot_product_attention"

MIXING = frozenset((*_WINDOWS, *_PRODUCTS, *_PAIRS, *_SUMS, *_NORMS, _ATTENTION))
"""The operations whose results are corrected."""


def mixes(op: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> bool:
    """Whether the operation mixes units; a sum or a product of two does so only if both are random."""
    if op not in MIXING or not isinstance(result, Value):
        return False
    if op not in _PAIRS:
        return True
    values = list(values_in(args, kwargs))
    return len(values) > 1 and values[0] is not values[1]


def is_settled(result: Normal) -> bool:
    """Whether a result needs no correction: a function of one value, or scores that remember query and key."""
    if result.origin is not None:
        return True
    content = None if result.note is None else result.note.content
    return isinstance(content, Product) and (content.key_variance is not None or content.key.ndim > 2)


class Layout:
    """Finds the channels of results, as dimensions counted from the last.

    A convolution determines the channels of its result. A sum of two values or an average does not; it follows the last
    operation whose result has the same number of dimensions.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, ...]] = {}

    def channels(self, op: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Value) -> tuple[int, ...]:
        """The dimensions along which every index has its own correction."""
        if op in _PAIRS:
            return self._of(result.ndim)
        if op in _SUMS:
            return self._after_sum(args, kwargs, result)
        found = self._own(op, args, kwargs, result)
        self.known[result.ndim] = found
        return found

    def _own(self, op: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Value) -> tuple[int, ...]:
        if op in _WINDOWS:
            return (-1 - _WINDOWS[op],)
        if result.ndim > 3 and (op == _ATTENTION or (op == "matmul" and sum(1 for _ in values_in(args, kwargs)) > 1)):
            return (-3, -1)  # heads and their features
        if op in _NORMS and not _NORMS[op]:
            return (1 - result.ndim,) if result.ndim > 1 else ()
        return (-1,) if result.ndim else ()

    def _of(self, ndim: int) -> tuple[int, ...]:
        if ndim in self.known:
            return self.known[ndim]
        return (1 - ndim,) if ndim > 3 else (-1,) if ndim else ()

    def _after_sum(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Value) -> tuple[int, ...]:
        summed: Any = next(values_in(args, kwargs))
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        dims = range(summed.ndim) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
        gone = {each % summed.ndim for each in dims}
        kept = [each for each in range(summed.ndim) if each not in gone or result.ndim == summed.ndim]
        channels = [each + summed.ndim for each in self._of(summed.ndim)]
        return tuple(kept.index(each) - result.ndim for each in channels if each not in gone)


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
        if like.ndim < self.depth:
            return None
        sizes = [like.shape[dim] if dim in self.dims else 1 for dim in range(-self.depth, 0)]
        return sizes if math.prod(sizes) == self.channels else None

    @property
    def depth(self) -> int:
        """The number of last dimensions that contain the channels."""
        return -min(self.dims, default=0)

    def arranged(self, x: Tensor, inputs: int) -> Tensor:
        """The elements of a result by row, channel and position; the rows are the batch of `inputs`, if it is found."""
        channels = [dim % x.ndim for dim in self.dims]
        others = [dim for dim in range(x.ndim) if dim not in channels]
        rows = [dim for dim in others if x.shape[dim] == inputs][:1]
        rest = [dim for dim in others if dim not in rows]
        count = x.shape[rows[0]] if rows else 1
        return x.permute((*rows, *channels, *rest)).reshape(count, self.channels, -1)


class Paths(contextlib.AbstractContextManager["Paths"]):
    """A context that tracks the path of the running module."""

    def __init__(self, model: Callable[..., Any]) -> None:
        self.modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
        self.stack: list[str] = []
        self.handles: list[Any] = []

    def __enter__(self) -> "Paths":
        for path, module in self.modules.items():
            self.handles.append(module.register_forward_pre_hook(self._entering(path)))
            self.handles.append(module.register_forward_hook(self._leaving))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

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

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.calls: dict[tuple[str, str], int] = {}

    def start(self, inputs: Sequence[Any]) -> None:
        """Count from the beginning."""
        self.calls = {}
        self.paths.stack.clear()

    def after(self, op: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Pass mixing operations to `seen`."""
        if mixes(op, args, kwargs, result):
            key = (self.paths.current, op)
            self.calls[key] = self.calls.get(key, 0) + 1
            self.seen((*key, self.calls[key]), args, kwargs, result)
        return result

    def seen(self, key: tuple[str, str, int], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Handle a mixing operation."""
        raise NotImplementedError


class Survey(Counting):
    """Finds all places of a model in one pass of AP2."""

    def __init__(self, paths: Paths) -> None:
        super().__init__(paths)
        self.layout = Layout()
        self.places: list[Place] = []

    def seen(self, key: tuple[str, str, int], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note the place."""
        dims = self.layout.channels(key[1], args, kwargs, result)
        if is_settled(result):
            self.places.append(Place(*key, (), 1, corrected=False))
        else:
            self.places.append(Place(*key, dims, math.prod(result.shape[dim] for dim in dims)))
