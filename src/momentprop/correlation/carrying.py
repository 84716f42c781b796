r"""How probes pass an operation, and what they say about its mean.

A probe is a draw of the deviations $h$ of all units from their means. Linear operations act on it as on any deviation.
Other functions of units take it to $f(\mu + h) - \overline{f(\mu + h)}$, where the bar is the mean over the probes. So
the noise that the function adds comes with all its dependence. Whatever an operation draws is drawn for the probes too.

Where $f$ is nonlinear in several units, the average of $f(\mu \pm h)$ estimates its mean, not the formula for
independent units.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.correlation.pooling import variance_of_draws
from momentprop.correlation.rests import of_shared_draw, rest
from momentprop.dispatch import Call, Kind, MissingRule
from momentprop.dispatch.rule_table import apply, order_of
from momentprop.torch_compat.functorch import vmapped

LINEAR = (Kind.MOVES, Kind.LINEAR)

MOST = {"cpu": 1 << 25, "cuda": 1 << 29}
"""The most elements of a value, over all its probes, to take at once on a device; by default as on a CPU."""

Normals = Callable[[Sequence[int], Tensor], Tensor]
"""Draws standard normal numbers of a shape, like a tensor."""


class Carried(NamedTuple):
    """What becomes of the probes of an operation's inputs."""

    probes: Tensor
    shift: Tensor | None = None  # of the mean, because units depend on each other
    noise: Tensor | None = None  # the variance of the shift, an average over few probes
    rests: Tensor | None = None  # the part of the probes that does not move linearly with the inputs' probes


def over_probes(function: Callable[..., Any], *probes: Tensor) -> Any:
    """Apply a function to every probe, all at once where torch can."""
    size = _together(probes[0])
    try:
        return vmapped(function, *probes, chunk_size=size if size < len(probes[0]) else None)
    except (RuntimeError, ValueError, NotImplementedError):  # `vmap` does not support it
        found = [function(*each) for each in zip(*probes, strict=True)]
    if isinstance(found[0], Tensor):
        return torch.stack(found)
    return tuple(torch.stack(parts) if isinstance(parts[0], Tensor) else parts[0] for parts in zip(*found, strict=True))


def _together(probes: Tensor) -> int:
    """Return how many probes to take at once."""
    return max(MOST.get(probes.device.type, MOST["cpu"]) // max(probes[0].numel(), 1), 1)


def carried(call: Call, result: Any, probes: Sequence[Tensor], normals: Normals) -> Carried:
    """Turn the probes of a call's values into those of its result."""
    means = [value.loc.detach() for value in call.values]
    function = _of_one(call, result)
    if function is not None:
        base, of_element = function
        mean = base.loc.detach()
        parts = [of_element(mean + some) for some in base.probes.split(_together(base.probes))]
        drawn = parts[0] if len(parts) == 1 else torch.cat(parts)
        return Carried(drawn - drawn.mean(0))
    if call.kind in LINEAR:
        return Carried(linearly(call, probes))
    if call.kind is Kind.NOISE:
        return _noisy(call, probes, normals)
    if call.kind is Kind.BILINEAR and len({id(value) for value in call.values}) > 1:
        return _multiplied(call, means, probes)
    try:
        return _mixed(call, result, means, probes, normals)
    except MissingRule:  # its plain function is unknown
        return _noisy(call, probes, normals)


def linearly(call: Call, probes: Sequence[Tensor]) -> Any:
    """Return the probes of a linear operation's result or results."""
    return over_probes(call.operation.homogeneous(call).on, *probes)


def several(call: Call, probes: Sequence[Tensor]) -> list[Tensor]:
    """Return the probes of an operation with several results."""
    if call.kind in LINEAR:
        found = linearly(call, probes)
    else:
        means = [value.loc.detach() for value in call.values]
        found = over_probes(lambda *h: call.on(*(m + d for m, d in zip(means, h, strict=True))), *probes)
        found = [each - each.mean(0) for each in found]
    return [each for each in found if isinstance(each, Tensor) and each.is_floating_point()]


def _of_one(call: Call, result: Any) -> tuple[Any, Callable[[Tensor], Tensor]] | None:
    """If a result is an elementwise function of one value and draws nothing, return the value and the function."""
    values = list(dict.fromkeys(call.values))
    if len(values) > 1 and result.origin is not None:
        origin = result.origin[0]
        return origin.base, lambda x: origin.function(x, *origin.parameters)
    if call.kind is not Kind.ELEMENTWISE:
        return None
    function = call.operation.transform(call, order_of(type(values[0])))
    of_more = function.of_more
    if of_more is not None:
        return values[0], lambda x: of_more(x, *function.more)
    return None if function.plain is None else (values[0], function.plain)


def _multiplied(call: Call, means: Sequence[Tensor], probes: Sequence[Tensor]) -> Carried:
    r"""Take $\mu_x h_y + h_x \mu_y + h_x h_y$; the mean of the last term is the factors' covariance, summed."""
    operation = call.operation
    call = operation.homogeneous(call)
    first, second = operation.factors
    mean, of = ({id(v): each for v, each in zip(call.values, parts, strict=True)} for parts in (means, probes))
    x, y = id(call.given(first)), id(call.given(second))
    summands = {name: id(call.given(name)) for name in operation.summands if id(call.given(name)) in of}
    nothing = {name: torch.zeros_like(mean[each]) for name, each in summands.items()}

    def at(x: Tensor, y: Tensor, **summands: Tensor) -> Any:
        return call.replaced({first: x, second: y, **nothing, **summands}).on()

    def linear(by_x: Tensor, by_y: Tensor, *more: Tensor) -> Any:
        return at(by_x, mean[y], **dict(zip(summands, more, strict=True))) + at(mean[x], by_y)

    moved = over_probes(linear, of[x], of[y], *(of[each] for each in summands.values()))
    products = over_probes(at, of[x], of[y])
    shift = products.mean(0)
    rests = products - shift
    return Carried(moved + rests, shift, _noise_of(products), rests)


def _mixed(call: Call, result: Any, means: Sequence[Tensor], probes: Sequence[Tensor], normals: Normals) -> Carried:
    """Take a nonlinear function of several units, and its average over probes and their opposites."""
    extra = None
    if call.operation.acts(call):  # dropout inside: its rest is drawn for each unit
        call = call.replaced({"dropout_p": 0.0})
        extra = (result.variance.detach() - apply(call).variance.detach()).clamp(min=0.0)
    if call.operation.updates and call.given("training", True):
        call = call.replaced(dict.fromkeys(("running_mean", "running_var")))

    def at(*deviations: Tensor) -> Any:
        return call.on(*(mean + h for mean, h in zip(means, deviations, strict=True)))

    plus, minus = over_probes(at, *probes), over_probes(at, *(-h for h in probes))
    even = (plus + minus) / 2
    mean = even.mean(0)
    drawn = plus - mean
    if extra is not None:
        drawn = drawn + extra.sqrt() * normals(drawn.shape, drawn)
    return Carried(drawn, mean - result.loc.detach(), _noise_of(even), even - mean)


def _noise_of(draws: Tensor) -> Tensor:
    """Return the variance of the mean of some draws."""
    draws = draws.to(torch.promote_types(draws.dtype, torch.float32))
    return variance_of_draws(draws, draws.mean(0)) / len(draws)


def _noisy(call: Call, probes: Sequence[Tensor], normals: Normals) -> Carried:
    r"""Take $Jh$ with the derivative $J$ of the mean, and draw the new noise.

    A shared draw $\xi$ multiplies its units: it moves them by its effect on their means, and their deviations in
    proportion.
    """
    values = list(dict.fromkeys(call.values))
    with torch.inference_mode(False), torch.enable_grad():
        leaves = {id(v): v.of(v.loc.detach().clone().requires_grad_(), v.variance.detach().clone()) for v in values}
        local = call.of(*(leaves[id(value)] for value in call.values))
        result = apply(local)
        own = rest(local, result, False).variance.detach().clamp(min=0.0)
        moved = _pushed(result.loc, [leaves[id(v)].loc for v in values], [_of(v, call, probes).clone() for v in values])
    shape = (len(moved), *own.shape)
    shared = call.operation.shared(call) if call.kind is Kind.NOISE else ()
    if not shared:
        return Carried(moved + own.sqrt() * normals(shape, moved))
    along = {dim % own.ndim for dim in shared}
    draw = normals([len(moved), *(1 if dim in along else size for dim, size in enumerate(own.shape))], moved)
    common = of_shared_draw(local).detach()
    variance = values[0].variance.detach()
    gain = ((own - common * common).clamp(min=0.0) / torch.where(variance > 0, variance, 1.0)).sqrt()
    return Carried(moved + draw * (common + gain * probes[0]))


def _of(value: Any, call: Call, probes: Sequence[Tensor]) -> Tensor:
    return next(h for each, h in zip(call.values, probes, strict=True) if each is value)


def _pushed(loc: Tensor, sources: Sequence[Tensor], along: Sequence[Tensor]) -> Tensor:
    r"""Return $Jh$ for every probe, by the derivative of $J^\top c$ by $c$."""
    nothing = loc.new_zeros((len(along[0]), *loc.shape))
    if not loc.requires_grad:
        return nothing
    cotangent = torch.zeros_like(loc, requires_grad=True)
    pulled: Any = torch.autograd.grad(loc, sources, cotangent, create_graph=True, allow_unused=True)
    pairs = [(g, h) for g, h in zip(pulled, along, strict=True) if g is not None and g.requires_grad]
    if not pairs:
        return nothing
    pulled, along = zip(*pairs, strict=True)
    try:
        return torch.autograd.grad(pulled, cotangent, along, retain_graph=True, is_grads_batched=True)[0]
    except RuntimeError:  # a derivative that `vmap` does not support
        each = zip(*along, strict=True)
        return torch.stack([torch.autograd.grad(pulled, cotangent, h, retain_graph=True)[0] for h in each])
