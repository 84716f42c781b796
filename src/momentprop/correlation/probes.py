r"""A watcher that lets random directions, the probes, travel beside the values of a pass and corrects AP2 by them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation import carrying, pooling
from momentprop.correlation.births import Birth
from momentprop.correlation.following import Following
from momentprop.correlation.layout import Layout, is_settled, mixes
from momentprop.correlation.rests import rest
from momentprop.dispatch import Call, Kind
from momentprop.dispatch.context import Watcher
from momentprop.dispatch.rule_table import apply
from momentprop.values.probed import Probed

OPTIONS: dict[str, Any] = {"elementwise": "draws", "control": "rule", "shrink": True, "means": True, "variances": True}


class Probing(Watcher):
    """Fills in the probes of every result, and corrects means and variances where units are mixed."""

    enters_composites = True

    def __init__(self, count: int, seed: int = 0, following: Following | None = None) -> None:
        self.count = count
        self.seed = seed
        self.following = following
        self.needs_graph = following is not None
        self.generators: dict[torch.device, torch.Generator] = {}
        self.lifted: dict[int, tuple[Tensor, Tensor]] = {}
        self.layout = Layout()
        self.items: int | None = None

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """Draw the deviations of the inputs."""
        self.generators, self.lifted, self.layout, self.items = {}, {}, Layout(), None
        if self.following is not None:
            self.following.enter(inputs, given)
        with torch.no_grad():
            for value in given:
                if isinstance(value, Probed):
                    if self.items is None and value.ndim:
                        self.items = value.shape[0]
                    value.carry(value.stddev.detach() * self._normal((self.count, *value.shape), value.loc))

    def after(self, call: Call, result: Any) -> Any:
        """Fill in the probes of a fresh result, and correct it."""
        if not call.values or any(result is value for value in call.values):
            return result if self.following is None else self.following.after(call, result)
        note = getattr(result, "note", None)
        followed = result if self.following is None else self.following.after(call, result)
        with torch.no_grad():
            results = [each for each in _flat(followed) if isinstance(each, Probed)]
            if results:
                self._carry(call, followed, results, note)
        return followed

    def _carry(self, call: Call, result: Any, results: Sequence[Probed], note: Any) -> None:
        means, probes = [value.loc.detach() for value in call.values], [self._probes(value) for value in call.values]
        shift = None
        if not isinstance(result, Probed):
            carried = self._several(call, results, means, probes)
        else:
            carried, shift = self._one(call, result, means, probes)
            carried = [carried]
        for each, probe in zip(results, carried, strict=True):
            each.carry(probe.to(each.dtype))
        if isinstance(result, Probed) and (mixes(call, result) or call.kind is Kind.MIXING):
            self._correct(call, result, shift, note)

    def _correct(self, call: Call, result: Probed, shift: Tensor | None, note: Any) -> None:
        channels = self.layout.channels(call, result)
        if shift is not None and OPTIONS["means"]:
            with torch.enable_grad():
                result.loc = result.loc + shift.to(result.dtype)
        if note is not None:
            result.note = note._replace(loc=result.loc, variance=result.variance)
        if is_settled(result) or not OPTIONS["variances"]:
            return
        factor = pooling.ratio(result.variance.detach(), result.probes, self._item(result), channels)
        with torch.enable_grad():
            result.variance = result.variance * factor.to(result.dtype)

    def _item(self, result: Probed) -> int | None:
        """Return the dimension along which items lie, as far as sizes tell."""
        if not result.ndim:
            return None
        return next((dim for dim in range(result.ndim) if result.shape[dim] == self.items), 0)

    def _several(self, call: Call, results: Sequence[Probed], means: Any, probes: Any) -> Sequence[Tensor]:
        if call.kind in carrying.LINEAR:
            return [each for each in carrying.linearly(call, probes) if isinstance(each, Tensor)]
        drawn = carrying.over_probes(lambda *h: call.on(*(m + d for m, d in zip(means, h, strict=True))), *probes)
        return [each - each.mean(0) for each in drawn]

    def _one(self, call: Call, result: Probed, means: Any, probes: Any) -> tuple[Tensor, Tensor | None]:
        joint = len(call.values) > 1 and result.origin is not None and any(v is not call.values[0] for v in call.values)
        if call.kind in carrying.LINEAR and not joint:
            return carrying.linearly(call, probes), None
        if call.kind is Kind.NOISE or call.operation.acts(call):
            return self._noisy(call, probes), None
        found = carrying.source(call, result)
        if found is not None:
            base, function = found
            if OPTIONS["elementwise"] == "slopes":
                return self._noisy(call, probes), None
            mean, h = base.loc.detach(), self._probes(base)
            moved = carrying.over_probes(lambda d: function(mean + d), h)
            return moved - moved.mean(0), None
        if call.kind is Kind.BILINEAR and len(set(map(id, call.values))) > 1:
            linear, product = carrying.products(call, means, probes)
            mean = product.mean(0)
            shift = self._shrunk(mean, product.var(0) / self.count, result) if OPTIONS["shrink"] else mean
            return linear + (product - mean), shift
        return self._mixed(call, result, means, probes)

    def _mixed(self, call: Call, result: Probed, means: Any, probes: Any) -> tuple[Tensor, Tensor | None]:
        def at(sign: float) -> Any:
            return carrying.over_probes(lambda *h: call.on(*(m + sign * d for m, d in zip(means, h, strict=True))), *probes)

        plus, minus = at(1.0), at(-1.0)
        even = (plus + minus) / 2
        mean = even.mean(0)
        if OPTIONS["control"] == "rule":
            spread = [value.of(value.loc.detach(), h.square().mean(0)) for value, h in zip(call.values, probes, strict=True)]
            base = apply(call.of(*spread)).loc
        elif OPTIONS["control"] == "perm":
            mixed = [_permuted(h, self._generator(h.device)) for h in probes]
            f = lambda *h: call.on(*(m + d for m, d in zip(means, h, strict=True)))
            other = (carrying.over_probes(f, *mixed) + carrying.over_probes(f, *(-h for h in mixed))) / 2
            base = other.mean(0)
            even = even - other
        elif OPTIONS["control"] == "ind":
            mixed = [value.stddev.detach() * self._normal(h.shape, h) for value, h in zip(call.values, probes, strict=True)]
            f = lambda *h: call.on(*(m + d for m, d in zip(means, h, strict=True)))
            other = (carrying.over_probes(f, *mixed) + carrying.over_probes(f, *(-h for h in mixed))) / 2
            base = other.mean(0)
            even = even - other
        else:
            base = result.loc.detach()
        shift = mean - base
        if OPTIONS["shrink"]:
            shift = self._shrunk(shift, even.var(0) / self.count, result)
        return plus - mean, shift

    def _shrunk(self, shift: Tensor, noise: Tensor, result: Probed) -> Tensor:
        item = self._item(result)
        within = [dim for dim in range(shift.ndim) if dim != item]
        scale = result.variance.detach()
        some = scale > 0
        scale = torch.where(some, scale, 1.0)
        seen, of_noise = shift.square() / scale, noise / scale
        if within:
            seen, of_noise = seen.sum(within, keepdim=True), of_noise.sum(within, keepdim=True)
        return shift * (1 - of_noise / seen.clamp(min=torch.finfo(seen.dtype).tiny)).clamp(min=0.0)

    def _noisy(self, call: Call, probes: Sequence[Tensor]) -> Tensor:
        values = list(dict.fromkeys(call.values))
        of = {id(value): h for value, h in zip(call.values, probes, strict=True)}
        leaves = {id(value): value.of(value.loc.detach().requires_grad_(), value.variance.detach()) for value in values}
        with torch.enable_grad():
            local = call.of(*(leaves[id(value)] for value in call.values))
            result = apply(local)
            born = rest(local, result, False).detach()
            cotangent = torch.zeros_like(result.loc, requires_grad=True)
            locs = [leaves[id(value)].loc for value in values]
            pulled = torch.autograd.grad(result.loc, locs, cotangent, create_graph=True, allow_unused=True)
        pairs = [(g, of[id(v)]) for g, v in zip(pulled, values, strict=True) if g is not None and g.requires_grad]
        moved = result.loc.new_zeros((self.count, *result.shape))
        if pairs:
            (moved,) = torch.autograd.grad([g for g, _ in pairs], cotangent, [h for _, h in pairs], is_grads_batched=True)
        birth = Birth(None, result.shape, born)
        return moved + carrying.drawn(birth, self.count, moved, lambda shape: self._normal(shape, moved))

    def _probes(self, value: Any) -> Tensor:
        """Return the probes of a value; those of one that was given to the model elsewhere, a weight say, are drawn."""
        if value.carries:
            return value.probes
        if id(value.variance) not in self.lifted:
            drawn = value.stddev.detach() * self._normal((self.count, *value.shape), value.loc)
            self.lifted[id(value.variance)] = (value.variance, drawn)
        value.carry(self.lifted[id(value.variance)][1])
        return value.probes

    def _normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return torch.randn(tuple(shape), generator=self._generator(like.device), dtype=like.dtype, device=like.device)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self.generators[device]


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _permuted(h: Tensor, generator: torch.Generator) -> Tensor:
    offset = torch.randint(0, len(h), h.shape[1:], generator=generator, device=h.device)
    index = (torch.arange(len(h), device=h.device).reshape(-1, *[1] * (h.ndim - 1)) + offset) % len(h)
    return h.gather(0, index)
