r"""How probes pass an operation.

A probe is one draw of the deviations $h$ of all units from their means. Linear operations act on it as on any
deviation. A nonlinear function of units, $f$, takes it to $f(\mu + h) - \overline{f(\mu + h)}$, where the bar is the
mean over the probes: what the function bears is then in it, with all its dependence. Operations that draw something,
and those whose plain function is not known, take the probe to $Jh$, with the derivative $J$ of their mean, plus a draw
of what they bear.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.births import Birth
from momentprop.dispatch import Call, Kind
from momentprop.dispatch.rule_table import order_of

LINEAR = (Kind.MOVES, Kind.LINEAR)
MOST = 1 << 25
"""The most elements of the results of one chunk of probes."""

Function = Callable[..., Any]


def over_probes(function: Function, *probes: Tensor) -> Any:
    """Apply a function to every probe, all at once where torch can."""
    size = max(int(MOST // max(probes[0][0].numel(), 1)), 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return torch.vmap(function, chunk_size=size if size < len(probes[0]) else None)(*probes)
    except (RuntimeError, ValueError, NotImplementedError):
        found = [function(*each) for each in zip(*probes, strict=True)]
    if isinstance(found[0], Tensor):
        return torch.stack(found)
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True))


def linearly(call: Call, probes: Sequence[Tensor]) -> Any:
    """Return the probes of a linear operation."""
    return over_probes(call.operation.homogeneous(call).on, *probes)


def source(call: Call, result: Any) -> tuple[Any, Function] | None:
    """Return a value and the function of each of its elements that a result is, if it is one and draws nothing."""
    values = list(dict.fromkeys(call.values))
    if len(values) > 1 and getattr(result, "origin", None) is not None:
        origin = result.origin[0]
        return origin.base, lambda x: origin.function(x, *origin.parameters)
    if call.kind is Kind.ELEMENTWISE and len(call.values) == 1:
        function = call.operation.transform(call, order_of(type(values[0])))
        if function.kernel is None:
            return None
        if function.of_more is not None:
            return values[0], lambda x: function.of_more(x, *function.more)
        return None if function.plain is None else (values[0], function.plain)
    return None


def products(call: Call, means: Sequence[Tensor], probes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return what a sum of products of two values makes of the probes: the linear part, and the products of probes."""
    operation = call.operation
    call = operation.homogeneous(call)
    first, second = operation.factors
    of = dict(zip(map(id, call.values), probes, strict=True))
    mean = dict(zip(map(id, call.values), means, strict=True))
    x, y = call.given(first), call.given(second)
    others = {name: call.given(name) for name in operation.summands if id(call.given(name)) in of}
    nothing = {name: torch.zeros_like(mean[id(each)]) for name, each in others.items()}

    def at(x: Tensor, y: Tensor, summands: dict[str, Tensor]) -> Any:
        return call.replaced({first: x, second: y, **summands}).on()

    names = list(others)
    linear = over_probes(
        lambda hx, hy, *more: at(hx, mean[id(y)], dict(zip(names, more, strict=True))) + at(mean[id(x)], hy, nothing),
        of[id(x)],
        of[id(y)],
        *(of[id(others[name])] for name in names),
    )
    return linear, over_probes(lambda hx, hy: at(hx, hy, nothing), of[id(x)], of[id(y)])


def drawn(birth: Birth, count: int, like: Tensor, normal: Callable[[Sequence[int]], Tensor]) -> Tensor:
    """Return draws of what was born: of each unit's own noise, of that which units share, of an input's sources."""
    shape = (count, *birth.shape)
    total = like.new_zeros(shape)
    if birth.own is not None:
        own = birth.own.detach().to(like.dtype).clamp(min=0.0).expand(birth.shape)
        noise = own.sqrt() * normal(shape)
        if birth.sums_to_zero:
            along = [dim % len(birth.shape) + 1 for dim in birth.along]
            all_of = own.sum([dim - 1 for dim in along], keepdim=True)
            share = torch.where(all_of > 0, own / torch.where(all_of > 0, all_of, 1.0), 0.0)
            noise = noise - share * noise.sum(along, keepdim=True)
        total = total + noise
    if birth.shared is not None:
        along = {dim % len(birth.shape) for dim in birth.along}
        source = normal((count, *(1 if dim in along else size for dim, size in enumerate(birth.shape))))
        total = total + source * birth.shared.detach()
    return total
