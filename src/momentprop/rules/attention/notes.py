r"""Attention written out by hand: scores remember their query and key, and a softmax remembers its scores.

The elements of `softmax(query @ key.mT)` are anything but independent. They sum to one, and the noise of a query moves
all its scores together. So a matrix product notes its factors, and its softmax notes the scores. The product of these
weights with values is `kernels.attention.mixture`, not a sum of independent terms. The note survives scaling the
scores, adding a mask and any other elementwise operation in between, as in `values.origin`. Dropout, copies and
conversions of the weights keep it too. All other operations drop it, including in-place ones.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.kernels.attention import Scores, Weights, mixture, scores, weights
from momentprop.kernels.derivatives import requires_grad
from momentprop.kernels.fuse import differentiable
from momentprop.kernels.kept import takes_room
from momentprop.kernels.moments import Moments
from momentprop.kernels.slope import slope
from momentprop.torch_compat.plainly import runs_plainly
from momentprop.values import Independent, Normal
from momentprop.values.moments import is_random, mean_of, variance_of
from momentprop.values.origin import writes_to

_MOST = {"cpu": 1 << 16}  # the most elements of an intermediate result; a larger batch is cut into pieces
_MOST_ELSEWHERE = 1 << 24  # where no cache is large enough and launching an operation costs more
_BYTES = 256  # that a graph of the mean keeps for each score


class Product(NamedTuple):
    """The factors of a matrix product `query @ key`, where the key is `(..., features, keys)`."""

    query: Tensor
    query_variance: Tensor
    key: Tensor
    key_variance: Tensor | None
    gain: float
    memory: tuple[tuple[list[int], int], ...]  # for factors with views: the write counter, and its count then

    @property
    def is_current(self) -> bool:
        """Whether all factors are as they were."""
        return all(count[0] == writes for count, writes in self.memory)


class Attending(NamedTuple):
    """A softmax's note: its scores, its moments, and the probability that dropout has since removed a weight."""

    scores: Scores
    weights: Weights
    dropout: float = 0.0


class Note(NamedTuple):
    """A note on a value, valid while the value has these components."""

    content: Product | Attending
    loc: Tensor
    variance: Tensor
    writes: int

    def moved(self, value: Normal, loc: Tensor, variance: Tensor) -> "Note":
        """Return the note for copies of a value's components."""
        return self if _read(value) is None else self._replace(loc=loc, variance=variance)


def _write(value: Normal, content: Product | Attending) -> None:
    value.note = Note(content, value.loc, value.variance, writes_to(value))  # type: ignore[misc]


def _read(value: Any) -> Product | Attending | None:
    note: Note | None = value.note if isinstance(value, Independent) else None
    if note is None or note.loc is not value.loc or note.variance is not value.variance:
        return None
    return note.content if note.writes == writes_to(value) else None


def note_factors(result: Normal, query: Normal | Tensor, key: Normal | Tensor, gain: float = 1.0) -> Normal:
    """Make the product of a random `query` with `key` remember its factors, and return it."""
    if isinstance(query, Independent) and query.ndim > 1 and key.ndim > 1:
        random = [factor for factor in (query, key) if isinstance(factor, Independent)]
        memory = tuple((factor.memory, factor.memory[0]) for factor in random if factor.memory)
        variance = variance_of(key) if is_random(key) else None
        _write(result, Product(query.loc, query.variance, mean_of(key), variance, gain, memory))
    return result


def note_with(note: Note, result: Normal) -> Note:
    """Return the note of a fresh result whose mean and variance have since been corrected."""
    content = note.content
    if isinstance(content, Attending):
        content = content._replace(weights=Weights(result.loc, result.variance))
    return Note(content, result.loc, result.variance, note.writes)


def scores_of(value: Normal, dtype: torch.dtype) -> Scores:
    """Return a value as scores along its last dimension, in the given type or at least float32."""
    dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    origin = value.source
    product = _read(origin.base) if origin.base.loc is origin.loc else None  # type: ignore[attr-defined]
    mean = value.loc.to(dtype)
    if not isinstance(product, Product) or not product.is_current or value.ndim < 2:
        return Scores(mean, value.variance.to(dtype))
    query, spread, factor = product.query.to(dtype), product.query_variance.to(dtype), product.gain
    if factor != 1:
        query, spread = factor * query, factor * factor * spread
    gain = None
    if origin.operations > 0:
        gain = slope(lambda x: origin.function(x, *origin.parameters), origin.loc).to(dtype)
    key_variance = None if product.key_variance is None else product.key_variance.mT.to(dtype)
    return scores(mean, query, spread, product.key.mT.to(dtype), key_variance, gain).whole()


def weights_of(scores: Scores) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the softmax of scores with shared noise, in closed form."""

    def kernel(mean: Tensor, shared: Tensor, private: Tensor | None = None) -> Moments:
        return Moments(*weights(Scores(mean, private, shared)))

    given = (scores.mean, scores.shared, scores.private)
    return differentiable(kernel, *(part for part in given if isinstance(part, Tensor)))


def note_softmax(result: Normal, scores: Scores) -> Normal:
    """Make the softmax of `scores` remember them, and return it."""
    _write(result, Attending(scores, Weights(result.loc, result.variance)))
    return result


def keep_note(result: Any, value: Normal, dropout: float = 0.0) -> Any:
    """Copy the note of attention weights to a copy, a conversion or their dropout, and return the latter."""
    content = _read(value)
    if isinstance(content, Attending) and result.device == value.device:
        dropped = 1 - (1 - content.dropout) * (1 - dropout)
        _write(result, Attending(content.scores, content.weights, dropped))
    return result


def attended(weights: Normal | Tensor, value: Normal | Tensor) -> Normal | None:
    """Return the product of attention weights with `value`, or None if the left factor is not attention weights."""
    content = _read(weights)
    if not isinstance(content, Attending) or value.ndim < 2:
        return None
    assert isinstance(weights, Independent)
    wide = content.scores.mean.dtype
    given = {
        **content.scores._asdict(),
        "average": content.weights.mean,
        "spread": content.weights.variance,
        "value": mean_of(value),
        "value_variance": variance_of(value) if is_random(value) else None,
    }

    def kernel(average: Tensor, spread: Tensor, value: Tensor, value_variance: Tensor | None, **given: Any) -> Moments:
        return Moments(*mixture(Scores(**given), Weights(average, spread), value, value_variance, content.dropout))

    mean, variance = in_pieces(kernel, given, wide)
    result = torch.promote_types(weights.dtype, value.dtype)
    return weights.of(mean.to(result), variance.to(result))


def in_pieces(kernel: Callable[..., Moments], given: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Run an attention kernel on named tensors, numbers and Nones; cut a large batch into pieces.

    Half precision and autocast are off inside, because variances are sums of terms that nearly cancel.
    """
    tensors, others = {}, {}
    for name, part in given.items():
        if not isinstance(part, Tensor):
            others[name] = part
        else:
            tensors[name] = part if part.dtype is dtype else part.to(dtype)
    device = tensors["value"].device.type

    def run(*parts: Tensor) -> Moments:
        named = dict(zip(tensors, parts, strict=True))
        if not torch.is_autocast_enabled(device):
            return kernel(**named, **others)
        with torch.autocast(device, enabled=False):
            return kernel(**named, **others)

    if torch.compiler.is_compiling():
        mean, variance = differentiable(run, *tensors.values())
        return mean, variance
    kept = takes_room(lambda: _BYTES * _scores(tensors))
    found = [_in_lanes(run, kept, piece) for piece in _pieces(tensors)]
    return found[0] if len(found) == 1 else (torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found]))


def _in_lanes(kernel: Callable[..., Moments], kept: bool, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Run an attention kernel with one dimension for all leading ones, if these are alike: products then start less.

    Where that takes copies, the kernel makes them itself, so that they are not saved.
    """
    leading = {part.shape[:-2] for part in parts if part.ndim > 2}
    lanes = next(iter(leading), torch.Size())
    alike = len(leading) == 1 and len(lanes) > 1
    inside = alike and not all([part.is_contiguous() for part in parts])  # noqa: C419 (a list is quicker)
    if alike and not inside:
        parts = _flat(parts)

    def run(*given: Tensor) -> Moments:
        return kernel(*_flat(given)) if inside else kernel(*given)

    mean, variance = run(*parts)[:2] if kept else differentiable(run, *parts)
    return (mean.view(*lanes, *mean.shape[-2:]), variance.view(*lanes, *mean.shape[-2:])) if alike else (mean, variance)


def _flat(parts: Sequence[Tensor]) -> list[Tensor]:
    return [part.flatten(0, -3) if part.ndim > 2 else part for part in parts]


def _scores(tensors: dict[str, Tensor], least: int = 0) -> int:
    """Return the number of scores, counting at least `least` for each query."""
    shapes = [part.shape for part in tensors.values()]
    lanes, rows = max([shape[:-2].numel() for shape in shapes]), max([shape[-2] for shape in shapes])
    return lanes * rows * max(tensors["value"].shape[-2], least)


def _pieces(tensors: dict[str, Tensor]) -> list[tuple[Tensor, ...]]:
    parts = tuple(tensors.values())
    dims = max([part.ndim for part in parts])
    batch = max([part.shape[0] for part in parts if part.ndim == dims])
    most, least = _MOST.get(tensors["value"].device.type), 0
    if most is None:
        most = _MOST_ELSEWHERE
        if "query_variance" in tensors and requires_grad(parts) and not runs_plainly():  # it keeps the contraction
            least = tensors["value"].shape[-1] * tensors["query_variance"].shape[-1]
    size = batch * most // max(_scores(tensors, least), 1)
    if dims < 3 or size >= batch:
        return [parts]
    size = max(size, 1)

    def cut(part: Tensor, start: int) -> Tensor:
        return part[start : start + size] if part.ndim == dims and part.shape[0] == batch else part

    return [tuple(cut(part, start) for part in parts) for start in range(0, batch, size)]
