r"""Streams of draws and their running moments.

Moments are accumulated in float64 by the pairwise update of central moments, so neither many draws nor a large mean
cost digits. No draw is stored.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from momentprop.randomness import REPLAYS, Foreign, are_same, aside, repeated
from momentprop.torch_compat.batching import RefuseWrong
from momentprop.values import Estimate, JointEstimate
from momentprop.values.folded import TooLarge

__all__ = ["MEMORY", "RunningCovariance", "RunningMoments"]

MEMORY = 2**29
"""The memory, in bytes, for the tensors of the draws that `vmap` makes together.

On a GPU it is a sixteenth of the free memory if that is more, because many small steps would leave the GPU idle.
"""

Draw = Callable[[], Sequence[Tensor]]
"""A function that makes one draw of several tensors."""


FIRST = 64
"""The most draws in a first batch, whose size in memory is not yet known."""

GROWTH = 256
"""The estimate, before counting, of how many bytes the results in a model take per byte of its arguments."""


class RunningMoments:
    r"""Running central moments $M_k = \sum_i (x_i - \bar x)^k$ up to the fourth, for the error of the variance."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor = torch.zeros(())
        self.powers: tuple[Tensor, Tensor, Tensor] = (self.mean, self.mean, self.mean)  # M2, M3, M4

    def add(self, draws: Tensor) -> None:
        """Add draws, stacked along the first dimension."""
        draws = draws.double()
        new = RunningMoments() if self.count else self
        new.count, new.mean = draws.shape[0], draws.mean(0)
        centred = draws - new.mean
        square = centred * centred
        new.powers = (square.sum(0), centred.mul_(square).sum(0), square.square_().sum(0))
        if new is not self:
            self.merge(new)

    def merge(self, other: "RunningMoments") -> None:
        """Merge the draws of other moments, such as another process's."""
        n, m = self.count, other.count
        mean, (a2, a3, a4) = other.mean, other.powers
        if n and m:
            b2, b3, b4 = self.powers
            total, d = n + m, mean - self.mean
            mean = self.mean + d * (m / total)
            # n is the weight of the old draws, m that of the new ones
            a4 = (
                (a4 + b4 + d**4 * (n * m * (n * n - n * m + m * m) / total**3))
                + 6 * d * d * (n * n * a2 + m * m * b2) / total**2
                + 4 * d * (n * a3 - m * b3) / total
            )
            a3 = a3 + b3 + d**3 * (n * m * (n - m) / total**2) + 3 * d * (n * a2 - m * b2) / total
            a2 = a2 + b2 + d * d * (n * m / total)
        if m:
            self.count, self.mean, self.powers = n + m, mean, (a2, a3, a4)

    def estimate(self, dtype: torch.dtype) -> Estimate:
        r"""Return mean, unbiased variance and their standard errors.

        The error of the variance is $\sqrt{(\mu_4 - \sigma^4(n-3)/(n-1))/n}$, with the fourth central moment $\mu_4$
        and the biased variance $\sigma^2$ of the draws. With the unbiased variance, a fair coin would have no error.
        """
        n = self.count
        second, _, fourth = self.powers
        variance = second / (n - 1)
        of_variance = torch.addcmul(fourth, second, second, value=-(n - 3) / (n * (n - 1))).clamp(min=0.0)
        parts = (self.mean, variance, (variance / n).sqrt(), of_variance.sqrt() / n)
        return Estimate.of(*(part.to(dtype) for part in parts))


class RunningCovariance(RunningMoments):
    """Running moments with the covariance of the units of an item; the items lie along `batch_dim`."""

    def __init__(self, batch_dim: int | None = 0) -> None:
        super().__init__()
        self.batch_dim = batch_dim
        self.products: Tensor = torch.zeros(())

    def add(self, draws: Tensor) -> None:
        """Add draws, stacked along the first dimension."""
        count, before = self.count, self.mean
        new = self._units(draws.double() - draws.double().mean(0))
        products = new.mT @ new
        super().add(draws)
        if count:
            # shape: (B, 1, n)
            shift = self._units((draws.double().mean(0) - before).unsqueeze(0))
            products = products + shift.mT @ shift * (count * len(draws) / self.count)
        self.products = self.products + products

    def _units(self, draws: Tensor) -> Tensor:
        """Return draws in the shape (B, draws, n)."""
        alone = self.batch_dim is None or draws.ndim == 1
        items = draws.unsqueeze(0) if alone else draws.movedim((self.batch_dim or 0) + 1, 0)
        return items.reshape(*items.shape[:2], items.shape[2:].numel())

    def estimate(self, dtype: torch.dtype) -> Estimate:
        """Return mean, unbiased variance, their standard errors, and the unbiased covariance."""
        found = super().estimate(dtype)
        covariance = (self.products / (self.count - 1)).to(dtype)
        alone = self.batch_dim is None or found.loc.ndim == 0
        return JointEstimate.of(*found.parts, covariance[0] if alone else covariance)


class _Bytes(TorchFunctionMode):
    """Counts the bytes of all tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        made = getattr(result, "loc", result)
        self.total += made.nbytes if isinstance(made, Tensor) else 0
        return result


def stream(
    draw: Draw,
    samples: int,
    *,
    together: bool = True,
    title: str = "sampling",
    moments_of: Callable[[Tensor], RunningMoments] | None = None,
    batches: "Batches | None" = None,
) -> list[Estimate]:
    """Estimate the moments of the tensors of `draw` from a number of draws; `moments_of` says what accumulates them."""
    moments: list[RunningMoments] = []
    dtypes: list[torch.dtype] = []
    with torch.no_grad():
        for drawn in chunks(draw, samples, together=together, title=title, batches=batches):
            if not moments:
                moments = [moments_of(tensor) if moments_of else RunningMoments() for tensor in drawn]
                dtypes = [torch.promote_types(tensor.dtype, torch.float32) for tensor in drawn]
            for moment, tensor in zip(moments, drawn, strict=True):
                moment.add(tensor)
    return [moment.estimate(dtype) for moment, dtype in zip(moments, dtypes, strict=True)]


class Batches:
    """Makes draws as one batch, without `vmap`, if a model is known to keep the items of a batch apart."""

    def __init__(self, size: int, is_known: bool) -> None:
        self.size = size  # bytes of the arguments
        self.is_known = is_known  # all code is known to draw only from torch's generators

    @property
    def device(self) -> torch.device | None:
        """The device of the arguments, if it is known."""
        return None

    def make(self, count: int, most: int) -> tuple[Sequence[Tensor], int]:
        """Return stacked draws and the bytes they took, or raise `NotFolded`."""
        raise NotImplementedError

    def repeat(self) -> bool:
        """Return whether draws depend only on torch's generators, and note the bytes of one of them."""

        def single() -> Sequence[Tensor]:
            draws, size = self.make(1, 0)
            self.size = size // GROWTH
            return draws

        return repeated(single) is not None

    def all(self, samples: int) -> Iterator[tuple[int, Sequence[Tensor]]]:
        """Make draws within the memory and yield their numbers and the draws, until that turns out to be impossible."""
        done, count = 0, min(samples, FIRST)
        each, most = max(GROWTH * self.size, 1), MEMORY
        if count * each > most and self.device is not None:
            most = _budget(self.device)
        count = min(count, max(most // each, 1))
        while done < samples:
            others = None if self.is_known else Foreign()
            try:
                draws, size = self.make(count, 2 * most)
            except TooLarge:
                count = 1
                continue
            except Exception:  # it may be the model's own error: then single draws meet it again
                return
            if others is not None and others.have_drawn:
                return
            yield count, draws
            done += count
            if done < samples:
                most = _budget(draws[0].device) if draws else MEMORY
                count = min(samples - done, max(most * count // max(size, 1), 1))


def chunks(
    draw: Draw, samples: int, *, together: bool = True, title: str = "sampling", batches: Batches | None = None
) -> Iterator[Sequence[Tensor]]:
    """Make draws and yield some at a time, stacked along a new first dimension.

    If `together` is set, `batches` makes as many draws together as `MEMORY` allows; if it cannot, `vmap` does, where
    torch supports it. `vmap` would make Python's and numpy's random numbers once for all draws, so draws that use such
    numbers are made one by one. So are draws where `vmap` is known to be wrong, gives another shape than a single draw,
    or gives equal draws though single ones differ.
    """
    done = 0
    if batches is not None and together and _may_batch(batches, samples):
        for count, draws in batches.all(samples):
            yield draws
            done += count
    if done < samples:
        yield from _by_vmap(draw, samples - done, together, title)


def _may_batch(batches: Batches, samples: int) -> bool:
    if batches.is_known:
        return True
    try:
        return samples > 2 * REPLAYS and batches.repeat()
    except Exception:  # as above
        return False


def _by_vmap(draw: Draw, samples: int, together: bool, title: str) -> Iterator[Sequence[Tensor]]:
    """Make draws with `vmap`, or one by one."""
    with progress(samples, title) as bar:
        before = repeated(draw, REPLAYS - 1) if together and samples > 2 * REPLAYS else None
        others = Foreign()
        with _Bytes() as counted:
            first = draw()
        yield [tensor.unsqueeze(0) for tensor in first]
        bar.update(1)
        alone = before is None or not first or bool(others.have_drawn) or not are_same(before, first)
        done, chunk = 1, 1 if alone else _budget(first[0].device) // max(counted.total, 1)
        while done < samples:
            chunk = min(chunk, samples - done)
            draws = _several(draw, chunk) if chunk > 1 else None
            if draws is None or not _alike(draws, first, draw):
                chunk, draws = 1, [tensor.unsqueeze(0) for tensor in draw()]
            yield draws
            bar.update(chunk)
            done += chunk


def _budget(device: torch.device) -> int:
    return max(MEMORY, torch.cuda.mem_get_info(device)[0] // 16) if device.type == "cuda" else MEMORY


def _alike(draws: Sequence[Tensor], first: Sequence[Tensor], draw: Draw) -> bool:
    """Return whether stacked draws have the shapes of a single one, and differ where single ones do."""
    for many, one in zip(draws, first, strict=True):
        if many.shape[1:] != one.shape or many.dtype != one.dtype:
            return False
    same = [bool((many == many[:1]).all()) for many in draws]
    if not any(same):
        return True
    other = aside(draw)
    return not any(
        is_same and one.shape == two.shape and not torch.equal(one, two)
        for is_same, one, two in zip(same, first, other, strict=True)
    )


def _several(draw: Draw, count: int) -> Sequence[Tensor] | None:
    """Return stacked independent draws, or None if `vmap` does not support the model or they share randomness."""
    others = Foreign()
    try:
        with warnings.catch_warnings(), RefuseWrong():
            warnings.simplefilter("ignore")  # torch warns about operations that it cannot batch
            draws = torch.func.vmap(lambda _: tuple(draw()), randomness="different")(torch.arange(count))
    except Exception:  # a single draw worked, so the fault is with `vmap`
        return None
    return None if others.have_drawn else draws


def progress(total: int, title: str) -> Any:
    """Return a progress bar that appears after two seconds, on a terminal or in a notebook with ipywidgets."""
    try:
        with warnings.catch_warnings(action="ignore"):  # that a notebook lacks ipywidgets
            from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError:
        return _NoBar()
    return tqdm(total=total, desc=title, delay=2.0, leave=False, disable=None)


class _NoBar(contextlib.nullcontext["_NoBar"]):
    def __enter__(self) -> "_NoBar":
        return self

    def update(self, count: int) -> None:
        """Show nothing."""
