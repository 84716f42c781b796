r"""A watcher that lets random directions, the *probes*, travel beside the values of a pass, and corrects AP2 by them.

AP2 takes the units that an operation mixes as independent. The probes of a value know better: see `values.probed`. So
after each operation that mixes units its variances are corrected by what the probes say of an item, a channel and a
unit (`pooling`), and its mean by what they say of products, attention, normalization and maxima (`carrying`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation import pooling
from momentprop.correlation.carrying import LINEAR, Carried, carried, several
from momentprop.correlation.following import Following
from momentprop.correlation.layout import Layout, is_settled, mixes
from momentprop.dispatch import Call, Kind
from momentprop.dispatch.context import Watcher
from momentprop.rules.attention.notes import note_with
from momentprop.values.probed import Probed


class Probing(Watcher):
    """Fills in the probes of every result, and corrects means and variances where units are mixed.

    With `following`, the births that it collects are given the probes' share in them, for `bending`.
    """

    enters_composites = True

    def __init__(
        self, count: int, seed: int = 0, following: Following | None = None, batch_dim: int | None = 0, first: int = 0
    ) -> None:
        self.count = count
        self.seed = seed
        self.following = following
        self.needs_graph = following is not None
        self.batch_dim = batch_dim
        self.first = first  # the number of the first item, if the batch is a piece of a larger one
        self._begin()

    def _begin(self) -> None:
        self.draws = 0
        self.items: int | None = None
        self.layout = Layout()
        self.known: dict[int, tuple[Tensor, Tensor]] = {}  # of values that no operation made, with their variances

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """Draw the deviations of the inputs."""
        self._begin()
        if self.following is not None:
            self.following.enter(inputs, given)
        for value in given:
            if isinstance(value, Probed):
                if self.items is None and self.batch_dim is not None and value.ndim > max(self.batch_dim, 1):
                    self.items = value.shape[self.batch_dim]
                self._introduce(value)

    def after(self, call: Call, result: Any) -> Any:
        """Fill in the probes of a fresh result, and correct it."""
        if any(result is value for value in call.values):
            return result
        note, births = getattr(result, "note", None), len(self._births())
        if self.following is not None:
            result = self.following.after(call, result)
        with torch.no_grad():
            if isinstance(result, Probed):
                self._carry(call, result, note, len(self._births()) > births)
            elif isinstance(result, tuple | list):
                results = [each for each in result if isinstance(each, Probed)]
                found = several(call, self._probes(call)) if results else []
                for each, probes in zip(results, found, strict=True):
                    each.carry(probes)
        return result

    def _carry(self, call: Call, result: Probed, note: Any, bears: bool) -> None:
        found = carried(call, result, self._probes(call), self._normals)
        if bears:
            self._bend(call, result, found)
        result.carry(found.probes.to(result.dtype))
        if mixes(call, result) or (call.kind is Kind.MIXING and note is not None):
            self._correct(call, result, found, note)
        elif note is not None:
            result.note = note_with(note, result)  # type: ignore[misc]

    def _correct(self, call: Call, result: Probed, found: Carried, note: Any) -> None:
        """Correct mean and variance where units are mixed; scores of an attention are told what they are made of."""
        channels, item, variance = self.layout.channels(call, result), self._item(result), result.variance.detach()
        is_function = result.origin is not None
        if found.shift is not None and found.noise is not None and not is_function:
            shift = pooling.shrunk(found.shift, found.noise, variance, item)
            with torch.enable_grad():
                result.loc = result.loc + shift.to(result.dtype)
        if not is_function and not (note is not None and is_settled(result) and call.kind is Kind.BILINEAR):
            factor = pooling.ratio(variance, result.probes, item, channels).to(result.dtype)
            with torch.enable_grad():
                result.variance = result.variance * factor
        if note is not None:
            result.note = note_with(note, result)  # type: ignore[misc]

    def _bend(self, call: Call, result: Probed, found: Carried) -> None:
        """Give the newest birth the rests of the probes, so that what rests have in common is known."""
        if call.kind is Kind.NOISE:
            return
        rests = found.rests
        if rests is None:
            rests = found.probes - self._linear_part(call, result)
        births = self._births()
        births[-1] = dataclasses.replace(births[-1], rests=(rests - rests.mean(0)).to(result.dtype))

    def _linear_part(self, call: Call, result: Probed) -> Any:
        """Return what moves linearly, for a function of each element of one value."""
        value = call.values[0] if result.origin is None or len(set(call.values)) == 1 else result.origin[0].base
        loc = value.loc if value is call.values[0] else result.origin[0].loc
        if not loc.requires_grad or not result.loc.requires_grad:
            return torch.zeros_like(value.probes)
        slope = torch.autograd.grad(result.loc, loc, torch.ones_like(result.loc), retain_graph=True, allow_unused=True)
        return 0.0 if slope[0] is None else slope[0] * value.probes

    def _births(self) -> list[Any]:
        return [] if self.following is None else self.following.births.found

    def _probes(self, call: Call) -> list[Tensor]:
        for value in call.values:
            if not value.carries:
                self._introduce(value)
        return [value.probes for value in call.values]

    def _introduce(self, value: Probed) -> None:
        """Draw the deviations of a value that no operation made: an input, or a random weight that is used again."""
        known = self.known.get(id(value.variance))
        if known is None:
            with torch.no_grad():
                drawn = value.stddev.detach() * self._normals((self.count, *value.shape), value.loc)
            known = self.known[id(value.variance)] = (value.variance, drawn)
        value.carry(known[1])

    def _item(self, result: Probed) -> int | None:
        """Return the dimension along which items lie, as far as sizes tell; it is the first one otherwise."""
        if self.items is None or not result.ndim:
            return None
        return next((dim for dim in range(result.ndim) if result.shape[dim] == self.items), 0)

    def _normals(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Draw standard normal numbers: those of an item do not depend on what other items there are."""
        self.draws += 1
        item = next((dim for dim in range(1, len(shape)) if shape[dim] == self.items), None)
        if item is None:
            return self._draw(shape, like, 0)
        rest = [*shape[:item], *shape[item + 1 :]]
        return torch.stack([self._draw(rest, like, 1 + self.first + each) for each in range(shape[item])], item)

    def _draw(self, shape: Sequence[int], like: Tensor, item: int) -> Tensor:
        seed = hash((self.seed, self.draws, item)) & (2**63 - 1)
        generator = torch.Generator(like.device).manual_seed(seed)
        return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)
