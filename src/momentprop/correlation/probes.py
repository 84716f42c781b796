r"""A watcher that carries random directions, the *probes*, along with a pass's values, and corrects AP2 by them.

AP2 treats the units that an operation mixes as independent. A value's probes know better: see `values.probed`. So after
each operation that mixes units, the probes correct its variances for the item, the channel and the unit (`pooling`),
and its mean for products, attention, normalization and maxima (`carrying`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation import pooling
from momentprop.correlation.births import Birth
from momentprop.correlation.carrying import LINEAR, Carried, carried, several
from momentprop.correlation.draws import Draws
from momentprop.correlation.following import Following
from momentprop.correlation.layout import Layout, is_settled, mixes
from momentprop.correlation.slopes import slope_of
from momentprop.dispatch import Call, Kind
from momentprop.dispatch.context import Watcher
from momentprop.rules.attention.notes import note_with
from momentprop.values.probed import Probed

_EXTREMES = ("max", "min")  # in the names of operations


class Probing(Watcher):
    """Fills in every result's probes, and corrects means and variances where units are mixed.

    After a `following` watcher, it adds draws of their noise to the births that watcher collects, for `bending`.
    """

    enters_composites = True

    def __init__(
        self, count: int, seed: int = 0, batch_dim: int | None = 0, following: Following | None = None, first: int = 0
    ) -> None:
        self.count = count
        self.batch_dim = batch_dim
        self.following = following
        self.draws = Draws(count, seed, first)
        self.layout = Layout()
        self.born = 0  # how many births there were before the operation

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """Draw the deviations of the inputs."""
        batches = [x for x in given if isinstance(x, Tensor | Probed) and x.ndim > max(self.batch_dim or 0, 1)]
        self.draws.start(batches[0].shape[self.batch_dim] if batches and self.batch_dim is not None else None)
        self.layout = Layout()
        for source, value in zip(inputs, given, strict=True):
            if isinstance(value, Probed):
                value.carry(self.draws.of_input(source, value))

    def before(self, call: Call) -> Call:
        """Note how much was born before."""
        self.born = len(self._births)
        return call

    def after(self, call: Call, result: Any) -> Any:
        """Fill in a fresh result's probes, and correct it."""
        if any(result is value for value in call.values):
            return result
        with torch.no_grad():
            if isinstance(result, Probed):
                self._carry(call, result)
            elif isinstance(result, tuple | list):
                results = [each for each in result if isinstance(each, Probed)]
                found = several(call, self._probes(call)) if results else []
                for each, probes in zip(results, found, strict=True):
                    each.carry(probes.to(each.dtype))
        return result

    def _carry(self, call: Call, result: Probed) -> None:
        found = carried(call, result, self._probes(call), self.draws.normals)
        result.carry(found.probes.to(result.dtype))
        mixed = mixes(call, result) or (call.kind is Kind.MIXING and result.origin is None)
        channels = self.layout.channels(call, result) if mixed else ()
        if len(self._births) > self.born and call.kind not in (Kind.NOISE, *LINEAR):
            self._births[-1] = self._bent(self._births[-1], call, result, found, channels)
        if mixed and result.origin is None:
            self._correct(call, result, found, channels)
        if result.note is not None:
            result.note = note_with(result.note, result)  # type: ignore[misc]

    def _correct(self, call: Call, result: Probed, found: Carried, channels: Sequence[int]) -> None:
        """Correct mean and variance; for attention scores, correct the variance of the factors they note."""
        item, variance = self.draws.item(result.shape), result.variance.detach()
        shift = factor = None
        if found.shift is not None and found.noise is not None:
            shift = pooling.shrunk(found.shift, found.noise, variance, item).to(result.dtype)
        if call.kind is Kind.MIXING or not is_settled(result):
            factor = pooling.ratio(variance, result.probes, item, channels).to(result.dtype)
        with torch.enable_grad():
            result.loc = result.loc if shift is None else result.loc + shift
            result.variance = result.variance if factor is None else result.variance * factor

    def _bent(self, birth: Birth, call: Call, result: Probed, found: Carried, channels: Sequence[int]) -> Birth:
        """Return a birth with the probes' draws of it.

        Overlapping windows share maxima: they add less noise than independent ones, and the draws say how much.
        """
        rests = _rests(call, result, found.probes) if found.rests is None else found.rests - found.rests.mean(0)
        rests = rests.to(result.dtype)
        own = birth.own
        if any(word in call.op for word in _EXTREMES) and own is not None:
            unbiased = rests * (self.count / (self.count - 1)) ** 0.5
            factor = pooling.ratio(own.detach(), unbiased, self.draws.item(result.shape), channels)
            with torch.enable_grad():
                own = own * factor.to(own.dtype)
        return dataclasses.replace(birth, own=own, rests=rests)

    @property
    def _births(self) -> list[Birth]:
        return [] if self.following is None else self.following.births.found

    def _probes(self, call: Call) -> list[Tensor]:
        for value in call.values:
            if not value.carries:
                value.carry(self.draws.of_weight(value))
        return [value.probes for value in call.values]


def _rests(call: Call, result: Probed, probes: Tensor) -> Tensor:
    """Return the nonlinear part of the probes of an elementwise function of one value, minus its mean."""
    value: Any = call.values[0]
    loc = value.loc
    if len({id(each) for each in call.values}) > 1:
        origin: Any = result.origin
        value, loc = origin[0].base, origin[0].loc
    slope = _slope(result.loc, loc)
    if slope is None:
        return probes - probes.mean(0)
    rests = torch.addcmul(probes, slope, value.probes, value=-1.0)
    return rests.sub_(rests.mean(0))


def _slope(result: Tensor, source: Tensor) -> Tensor | None:
    """Return the derivative of each element of a result by the source's element; None if it does not move with it."""
    if not source.requires_grad or not result.requires_grad:
        return None
    known = slope_of(result, source)
    if known is not None:
        return known
    found: Any = torch.autograd.grad(result, source, torch.ones_like(result), retain_graph=True, allow_unused=True)
    return found[0]  # type: ignore[no-any-return]
