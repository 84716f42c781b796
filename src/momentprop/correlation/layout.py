r"""Which operations mix units, and which dimensions of their results are channels.

An operation that adds or compares several random units treats them as independent, so its result needs a correction.
Elementwise functions of one value need none: their moments are right if their input's are.
"""

from typing import Any

from momentprop.dispatch import Call, Kind
from momentprop.rules.attention.notes import Product
from momentprop.values import Certain, Independent, Value

_MIXING = (Kind.LINEAR, Kind.BILINEAR, Kind.MIXING)
_HEADS = (-3, -1)  # of attention, and their features


def mixes(call: Call, result: Any) -> bool:
    """Whether the operation mixes units; one that acts place by place does so only if two values are random."""
    if not isinstance(result, Independent | Certain) or call.kind not in _MIXING:
        return False
    return not _is_pointwise(call) or (len(call.values) > 1 and call.values[0] is not call.values[1])


def _is_pointwise(call: Call) -> bool:
    return call.operation.pointwise is not None or getattr(call.operation, "diagonal", False)


def is_settled(result: Any) -> bool:
    """Whether a result needs no correction: a function of one value, or an attention's scores and weights."""
    if result.origin is not None:
        return True
    content = None if result.note is None else result.note.content
    if isinstance(content, Product):
        return content.key_variance is not None or content.key.ndim > 2
    return content is not None


class Layout:
    """Finds the channels of results, as dimensions counted from the last.

    A convolution determines its result's channels. A sum of two values or an average does not; it follows the last
    operation whose result has the same number of dimensions.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, ...]] = {}

    def channels(self, call: Call, result: Value) -> tuple[int, ...]:
        """The dimensions along which every index has its own correction."""
        if _is_pointwise(call):
            return self._of(result.ndim)
        if call.kind is Kind.LINEAR and call.operation.along is not None:
            return self._after_sum(call, result)
        found = self._own(call, result)
        self.known[result.ndim] = found
        return found

    def _own(self, call: Call, result: Value) -> tuple[int, ...]:
        ndim, told = result.ndim, call.operation.channels
        if not told and call.kind is Kind.BILINEAR:
            told = _HEADS
        if told == _HEADS and ndim < 4:
            told = ()
        if not told or ndim < 2:
            return (-1,) if ndim else ()
        return tuple(dim if dim < 0 else dim - ndim for dim in told)

    def _of(self, ndim: int) -> tuple[int, ...]:
        if ndim in self.known:
            return self.known[ndim]
        return (1 - ndim,) if ndim > 3 else (-1,) if ndim else ()

    def _after_sum(self, call: Call, result: Value) -> tuple[int, ...]:
        summed = call.values[0]
        gone = set(call.operation.dims(call) or ())
        kept = [each for each in range(summed.ndim) if each not in gone or result.ndim == summed.ndim]
        channels = [each + summed.ndim for each in self._of(summed.ndim)]
        return tuple(kept.index(each) - result.ndim for each in channels if each not in gone)
