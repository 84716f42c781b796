r"""Corrections of the variance of every unit from the unit's own state: $\sigma'^2 = \sigma^2 e^t$.

The exponent is $t = c_0 + c_1\log\sigma^2 + c_2 a + c_3 a^2$ with $a = \mu/\sigma$, clipped to $\pm 6$, and with
coefficients for every channel. `calibration.channel_map` adds a term from the other channels at the unit's position.
The exponent is kept within the range that it had in the fit, so a unit unlike those of the fit cannot run away.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from momentprop.calibration.operations import Place
from momentprop.calibration.prepared import Keeper, Prepared
from momentprop.correlation.layout import mixes
from momentprop.dispatch import Call, where
from momentprop.dispatch.context import Watcher
from momentprop.kernels.built import may_be_built
from momentprop.kernels.built_rows import RowKernel
from momentprop.kernels.derivatives import requires_grad
from momentprop.kernels.rows import along_rows
from momentprop.values import Independent, Uncertain, Value

Features = Literal["all", "state", "variance", "channel"]
"""The features of the exponent: the unit's variance and mean (its state) and other channels; the state alone; the
variance alone; or only the channel."""

COUNT: dict[str, int] = {"all": 3, "state": 3, "variance": 1, "channel": 0}
"""The number of features of the unit, besides the constant."""

_CLIP = 6.0
_FLOOR = 1e-20  # least variance in the features, so that the derivatives of its logarithm and root stay finite


def rows(features: Features, rank: int) -> int:
    """The count of numbers per channel: the coefficients, the range of the exponent, and a map of the given rank."""
    return 1 + COUNT[features] + (2 if COUNT[features] else 0) + 2 * rank


def of_units(features: Features, loc: Tensor, variance: Tensor) -> list[Tensor]:
    r"""The features of units: $\log\sigma^2$, $a$, $a^2$, or the first, or none."""
    if features == "channel":
        return []
    variance = variance.clamp(min=_FLOOR)
    if features == "variance":
        return [variance.log()]
    a = (loc * variance.rsqrt()).clamp(-_CLIP, _CLIP)
    return [variance.log(), a, a * a]


def corrected(features: Features, numbers: Tensor, loc: Tensor, variance: Tensor) -> Tensor:
    """The corrected variance, by the numbers of each channel: coefficients, range of the exponent, and map.

    The numbers broadcast to the variance.
    """
    if features == "channel":
        return variance * numbers[0].exp()
    shape, by_rows = variance.shape, _are_rows(loc, variance)
    if by_rows:
        numbers, loc, variance = _with_long_rows(numbers, loc, variance)
    run = partial(along_rows, results=(True,)) if by_rows else _directly
    count = rows(features, 0)
    given = [variance, *numbers[:count].unbind(0)]
    if len(numbers) > count:
        down, up = numbers[count:].flatten(1).chunk(2)
        (log_variance,) = run(_logarithm, variance)
        given += [mapped(down, up, log_variance, numbers.ndim - 1), log_variance]
    (found,) = run(_by_variance, *given) if features == "variance" else run(_by_state, loc, *given)
    return found.reshape(shape)


def _are_rows(loc: Tensor, variance: Tensor) -> bool:
    """Whether row kernels read the moments in place; a compiler makes its own loops."""
    compiling = torch.compiler.is_compiling()
    return not compiling and loc.ndim > 0 and loc.is_contiguous() and variance.is_contiguous()


def _with_long_rows(numbers: Tensor, loc: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the last dimensions, along which the numbers do not differ, into one."""
    sizes = numbers.shape[1:]
    constant = next((k for k, size in enumerate(reversed(sizes)) if size != 1), len(sizes))
    if constant < 2:
        return numbers, loc, variance
    return numbers.flatten(-constant), loc.flatten(-constant), variance.flatten(-constant)


def _directly(kernel: RowKernel, *given: Tensor) -> Sequence[Tensor]:
    return kernel(*given)  # type: ignore[no-any-return]


def _logarithm(variance: Tensor) -> tuple[Tensor]:
    return (variance.clamp(min=_FLOOR).log(),)


def _by_variance(
    variance: Tensor, constant: Tensor, slope: Tensor, low: Tensor, high: Tensor, *others: Tensor
) -> tuple[Tensor]:
    """The corrected variance; `others` is what other channels add to the exponent, with the logarithm it comes from."""
    term, log_variance = others or (0.0, *_logarithm(variance))
    exponent = constant + slope * log_variance + term
    return (variance * torch.clamp(exponent, low, high).exp(),)


def _by_state(
    loc: Tensor,
    variance: Tensor,
    constant: Tensor,
    slope: Tensor,
    linear: Tensor,
    square: Tensor,
    *more: Tensor,
) -> tuple[Tensor]:
    """The corrected variance where the mean counts too."""
    a = (loc * variance.clamp(min=_FLOOR).rsqrt()).clamp(-_CLIP, _CLIP)
    return _by_variance(variance, constant + (linear + square * a) * a, slope, *more)


def mapped(down: Tensor, up: Tensor, x: Tensor, channel: int) -> Tensor:
    """Apply a map of low rank, with parts of shape (rank, channels), to the dimension `channel` from the end."""
    if channel == 1:
        return (x @ down.T) @ up
    rest = x.flatten(1 - channel)
    items = rest.reshape(-1, *rest.shape[-2:])
    few = torch.bmm(down.expand(len(items), -1, -1), items)
    return torch.bmm(up.T.expand(len(items), -1, -1), few).reshape(x.shape)


class Corrections(Watcher):
    """Corrects the results of mixing operations, one after the other, with a table of numbers."""

    def __init__(
        self,
        places: Sequence[Place],
        features: Features,
        levels: Sequence[float],
        table: Tensor,
        keeper: Keeper | None = None,
    ) -> None:
        self.places = places
        self.features = features
        self.levels = levels
        self.table = table  # shape: (levels, all numbers of all places)
        self.keeper = keeper or Keeper()
        self.numbers: Tensor | None = None
        self.position = 0
        self.offset = 0
        self.prepared: Prepared | None = None

    def start(self, inputs: Sequence[Any]) -> None:
        """Begin at the first operation, with the numbers for the noise of the inputs."""
        self.position = self.offset = 0
        self.prepared = None
        numbers = self.table[0] if len(self.levels) < 2 else self._interpolated(level(inputs))
        given = next((x for x in inputs if isinstance(x, Tensor | Value)), numbers)
        self.numbers = numbers.to(given.device)

    def after(self, call: Call, result: Any) -> Any:
        """Correct the result of an operation that mixes units."""
        if not mixes(call, result):
            return result
        place = self.places[self.position] if self.position < len(self.places) else None
        shape = place.shape(result.loc) if place is not None and place.op == call.op else None
        if place is None or shape is None:
            raise ValueError(_unlike(place, call.op, result))
        self.position += 1
        return self.correct(place, shape, result) if place.corrected else result

    def correct(self, place: Place, shape: list[int], result: Independent) -> Independent:
        """The result with its variance corrected by the numbers of the place."""
        assert self.numbers is not None
        count = rows(self.features, place.rank)
        start, self.offset = self.offset, self.offset + count * place.channels
        loc, variance = result.loc, result.variance
        found = self._by_plan(shape, loc, variance) if _are_rows(loc, variance) else None
        if found is not None:
            return result.of(loc, found)
        numbers = self.numbers.narrow(0, start, count * place.channels).reshape(count, *shape)
        if numbers.dtype is loc.dtype and numbers.device == loc.device:
            return result.of(loc, corrected(self.features, numbers, loc, variance))
        wide = torch.promote_types(loc.dtype, torch.float32)
        variance = corrected(self.features, numbers.to(loc.device, wide), loc.to(wide), variance.to(wide))
        return result.of(loc, variance.to(loc.dtype))

    def _by_plan(self, shape: list[int], loc: Tensor, variance: Tensor) -> Tensor | None:
        """The corrected variance by a program that was prepared, where one can run and needs no derivative."""
        assert self.numbers is not None
        given = (loc, variance, self.numbers)
        if self.features == "channel" or requires_grad(given) or not may_be_built(given):
            return None
        if self.prepared is None:
            self.prepared = self._prepared()
        kernel, moments = (_by_variance, (variance,)) if self.features == "variance" else (_by_state, (loc, variance))
        plan = self.prepared.plan(self.position - 1, shape, loc.shape, len(moments))
        return None if plan is None else plan.corrected(kernel, _logarithm, moments)

    def _prepared(self) -> Prepared:
        """The numbers for this pass: kept from the last one, if they are the table itself."""
        assert self.numbers is not None
        count = rows(self.features, 0)
        if len(self.levels) < 2 and self.numbers.device == self.table.device:
            return self.keeper.prepared(self.places, count, self.table)
        return Prepared(self.places, count, self.numbers)

    def finish(self) -> None:
        """Raise an error if operations are missing; if nothing was random, none was expected."""
        if 0 < self.position < len(self.places):
            raise ValueError(
                f"the calibration does not fit: the model ended before {self.places[self.position]}; "
                "calibrate it again, with inputs and noise like these"
            )

    def _interpolated(self, variance: Tensor) -> Tensor:
        """The numbers for an input variance: linear in its logarithm between the levels, constant beyond."""
        knots = torch.tensor(self.levels, device=self.table.device, dtype=self.table.dtype).log()
        at = variance.to(knots).clamp(min=_FLOOR).log().clamp(knots[0], knots[-1])
        share = ((at - knots[:-1]) / knots.diff()).clamp(0.0, 1.0)  # position between each knot and the next
        ones = torch.ones_like(at).reshape(1)
        weights = torch.cat((ones, share)) - torch.cat((share, 0 * ones))
        return weights @ self.table


def level(inputs: Sequence[Any]) -> Tensor:
    """The noise level of inputs: the mean of all variances among them, or zero."""
    values = [given for given in inputs if isinstance(given, Uncertain)]
    if not values:
        return torch.zeros(())
    number = getattr(values[0], "number", None) if len(values) == 1 else None
    if number is not None:
        return torch.tensor(number)  # known without waiting for a GPU
    variances = [value.variance for value in values]
    total = torch.stack([variance.float().sum() for variance in variances]).sum()
    return total.detach() / sum(variance.numel() for variance in variances)


def _unlike(place: Place | None, op: str, result: Independent) -> str:
    if place is None:
        expected = "no further operation that mixes units"
    else:
        expected = f"{place} with {place.channels} channels in the dimensions {place.dims}"
    return (
        f"the calibration does not fit: it has {expected}, where the model has {op!r} with a result of shape "
        f"{tuple(result.shape)} at {where()}; calibrate the model again, with inputs like these"
    )
