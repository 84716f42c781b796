"""How to run each operation on draws in one batch, or why to refuse it."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from momentprop.dispatch import Call
from momentprop.dispatch.kinds import Elementwise, Linear, Noise, Operation
from momentprop.dispatch.rule_table import find, made_function, operation_named, operations
from momentprop.folding.step import How, Step
from momentprop.functional.noise import draw_like
from momentprop.values import Sample
from momentprop.values.folded import Folded


def _folded(value: Folded) -> Tensor:
    return value.folded


def pointwise(step: Step) -> Any:
    """Run a function of elements at one place, to which tensors of other shapes broadcast."""
    values, first = step.values, step.values[0].folded
    plain = [x for x in (*step.args, *step.kwargs.values()) if isinstance(x, Tensor)]
    if not plain and len(values) == 1 and values[0] is step.args[0]:
        return step.function(first, *step.args[1:], **step.kwargs)
    rank = max(x.ndim for x in (*(value.folded for value in values), *plain))
    fits = all(x.folded.ndim == rank and x.folded.shape[0] == first.shape[0] for x in values[1:])
    if first.ndim == rank and fits and all(x.ndim < rank or x.shape[0] == 1 for x in plain):
        return step.filled(_folded)
    apart = step.filled(lambda x: x.unfolded()[(slice(None), *[None] * (rank - x.folded.ndim))])
    return apart.flatten(0, 1)


def _along(step: Step) -> Any:
    """Run an operation that acts along dimensions given by the table."""
    value, operation = step.alone, operation_named(step.op)
    dims = operation.dims(Call(operation, step.args, step.kwargs, step.values))
    step.require(dims is not None and 0 not in dims)
    return step.on(value.folded)


def _items(least: int, most: int | None = None) -> How:
    """Run an operation whose first argument has items along its first dimension, at some ranks."""

    def run(step: Step) -> Any:
        x = step.alone.folded
        if not least <= x.ndim <= (most or x.ndim):
            step.fold.refuse(step.op)
        return step.function(x, *step.args[1:], **step.kwargs)

    return run


def _dim(name: str, position: int, default: Any = None) -> How:
    """Run an operation that acts along dimensions named by an argument."""

    def run(step: Step) -> Any:
        x, dims = step.alone.folded, step.given(name, position, default)
        dims = [dims] if type(dims) is int else dims
        known = isinstance(dims, list | tuple) and len(dims) > 0 and all(type(dim) is int for dim in dims)
        step.require(known and all(dim % x.ndim for dim in dims))
        return step.on(x)

    return run


def noise(step: Step) -> Any:
    """Draw noise for every draw, unless units along the first dimension share it."""
    value, operation = step.alone, operation_named(step.op)
    assert isinstance(operation, Noise)
    step.require(0 not in operation.shared(Call(operation, step.args, step.kwargs, step.values)))
    for x in (*step.args[1:], *step.kwargs.values()):
        step.require(not isinstance(x, Distribution) or _is_flat(x.batch_shape, value.folded.ndim))
    rule = find(step.op, Sample)
    return step.on(value.folded) if rule is None else rule(Sample.of(value.folded), *step.args[1:], **step.kwargs).loc


def noisy(step: Step) -> Any:
    """Return an activation's input with its noise; the mode sees what the activation does with it."""
    x, noise = step.alone.folded, step.given("noise", 2, "normal")
    step.require(isinstance(noise, str) or _is_flat(noise.batch_shape, x.ndim))
    return x - draw_like(x, noise)


def _is_flat(shape: Sequence[int], rank: int) -> bool:
    """Return whether a shape broadcasts along the first of some dimensions."""
    return len(shape) < rank or (len(shape) == rank and shape[0] == 1)


def _batch_norm(step: Step) -> Any:
    value = step.alone
    step.require(step.kwargs.get("training") is False and value.folded.ndim > 1)
    return step.on(value.folded)


def _instance_norm(step: Step) -> Any:
    value = step.alone
    step.require(step.given("running_mean", 1) is None and value.folded.ndim > 2)
    return step.on(value.folded)


def _layer_norm(step: Step) -> Any:
    value, shape = step.alone, step.given("normalized_shape", 1, ())
    step.require(0 < len(shape) < value.folded.ndim)
    return step.on(value.folded)


def _matmul(step: Step) -> Any:
    x, y = (getattr(factor, "folded", factor) for factor in step.args[:2])
    if len(step.values) == 2:
        step.require(x.ndim == y.ndim > 2 and x.shape[0] == y.shape[0])
    elif step.values[0] is step.args[0]:
        step.require(x.ndim > 1 and y.ndim <= 2)
    else:
        step.require(y.ndim > 2 and x.ndim == 2)
    return step.filled(_folded)


def _attention(step: Step) -> Any:
    query, mask = step.values[0].folded, step.given("attn_mask", 3)
    step.require(len(step.values) == 3 and list(map(id, step.values)) == list(map(id, step.args[:3])))
    step.require(all(x.folded.ndim == query.ndim > 2 and len(x.folded) == len(query) for x in step.values))
    step.require(mask is None or _is_flat(mask.shape, query.ndim))
    return step.filled(_folded)


def _reshaped(step: Step) -> Any:
    value, sizes = step.alone, _numbers(step.args[1:])
    step.require(not step.kwargs and len(sizes) > 0 and all(type(size) is int for size in sizes))
    if sizes[0] == -1:
        rest = functools.reduce(int.__mul__, sizes[1:], 1)
        step.require(rest > 0 and value.numel() % rest == 0)
        sizes[0] = value.numel() // rest
    return step.on(value.folded, [step.fold.count * sizes[0], *sizes[1:]])


def _permuted(step: Step) -> Any:
    value, order = step.alone, _numbers(step.args[1:])
    step.require(not step.kwargs and len(order) == value.folded.ndim and order[0] in (0, -len(order)))
    return step.on(value.folded)


def _transposed(step: Step) -> Any:
    x, dims = step.alone.folded, step.args[1:]
    step.require(len(dims) == 2 and all(type(dim) is int and dim % x.ndim for dim in dims))
    return step.on(x)


def _unsqueezed(step: Step) -> Any:
    x, dim = step.alone.folded, step.given("dim", 1)
    step.require(type(dim) is int and dim % (x.ndim + 1) != 0)
    return step.on(x)


def _expanded(step: Step) -> Any:
    value, sizes = step.alone, _numbers(step.args[1:])
    step.require(not step.kwargs and len(sizes) == value.folded.ndim and sizes[0] in (-1, len(value)))
    return step.on(value.folded, -1, *sizes[1:])


def _repeated(step: Step) -> Any:
    value, times = step.alone, _numbers(step.args[1:])
    step.require(not step.kwargs and len(times) == value.folded.ndim and times[0] == 1)
    return step.on(value.folded)


def _padded(step: Step) -> Any:
    x = step.alone.folded
    step.require(len(step.given("pad", 1, ())) < 2 * x.ndim)
    return step.on(x)


def _indexed(step: Step) -> Any:
    x, index = step.alone.folded, step.args[1]
    index = index if isinstance(index, tuple) else (index,)
    step.require(all(type(item) in (int, slice, type(...), type(None)) for item in index))
    taken = sum(type(item) in (int, slice) for item in index)
    first = index[0] if index else None
    step.require(first == slice(None) if isinstance(first, slice) else first is ... and taken < x.ndim)
    return step.on(x)


def _joined(step: Step) -> Any:
    """Join tensors along a dimension other than the first; `stack` makes a new one."""
    parts, dim = step.args[0], step.given("dim", 1, 0)
    step.require(isinstance(parts, list | tuple) and len(step.values) == sum(type(x) is Folded for x in parts))
    tensors = [(x if type(x) is Folded else step.fold.lifted(x)).folded for x in parts]
    rank = tensors[0].ndim + (step.op == "stack")
    step.require(type(dim) is int and dim % rank != 0 and all(x.shape[0] == tensors[0].shape[0] for x in tensors))
    return step.on(tensors)  # type: ignore[arg-type]


def sized(step: Step) -> Any:
    """Draw numbers of a given shape, separately for every draw."""
    sizes = _numbers(step.args)
    step.require(len(sizes) > 0 and all(type(size) is int for size in sizes))
    step.require(not {"size", "generator", "out", "names"} & set(step.kwargs))
    return step.function(step.fold.count * sizes[0], *sizes[1:], **step.kwargs)


def _numbers(arguments: Sequence[Any]) -> list[Any]:
    """Return numbers passed one by one or as a sequence."""
    return list(arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list | tuple) else arguments)


_ELEMENTS = """
    acos acosh asin asinh atan atanh bernoulli binary_step bool ceil copysign cosh detach digamma empty_like eq erfc
    erfinv float floor fmax fmin fmod frac full_like ge greater greater_equal gt hypot int isfinite isinf isnan le
    less less_equal lgamma log_sigmoid logaddexp logical_and logical_not logical_or logical_xor logit long lt
    masked_fill nan_to_num ne not_equal ones_like positive rand_like randn_like remainder round sgn sinc sinh
    softsign tan trunc where xlogy zeros_like
""".split()
"""Elementwise functions that the table does not list as such."""

_LISTED: dict[str, How] = {
    **dict.fromkeys(_ELEMENTS, pointwise),
    **{f"__{name}__": pointwise for name in "eq ge gt le lt ne".split()},
    **{f"{kind}{n}d": _items(n + 2, n + 2) for n in (1, 2, 3) for kind in ("conv", "conv_transpose")},
    **{
        f"{before}{kind}_pool{n}d{after}": _items(n + 2, n + 2)
        for n in (1, 2, 3)
        for before in ("", "adaptive_")
        for kind, after in (("avg", ""), ("max", ""), ("max", "_with_indices"))
    },
    **dict.fromkeys(("linear", "mm", "prelu", "group_norm"), _items(2)),
    **dict.fromkeys(("interpolate", "local_response_norm", "channel_shuffle"), _items(3)),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _items(4)),
    **dict.fromkeys(("flatten", "ravel", "embedding"), _items(1)),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean", "prod", "any", "all", "cumprod"), _dim("dim", 1)),
    **dict.fromkeys(("squeeze", "select", "narrow", "index_select", "unflatten"), _dim("dim", 1)),
    **dict.fromkeys(("chunk", "split"), _dim("dim", 2, 0)),
    **dict.fromkeys(("reshape", "view"), _reshaped),
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    **dict.fromkeys(("cat", "stack"), _joined),
    "unbind": _dim("dim", 1, 0),
    "flip": _dim("dims", 1),
    "roll": _dim("dims", 2),
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "matmul": _matmul,
    "bmm": _matmul,
    "scaled_dot_product_attention": _attention,
    "permute": _permuted,
    "transpose": _transposed,
    "unsqueeze": _unsqueezed,
    "expand": _expanded,
    "repeat": _repeated,
    "pad": _padded,
    "getitem": _indexed,
    "noisy_activation": noisy,
}


@functools.cache
def ways() -> dict[str, How]:
    """Return how to run each operation on draws in one batch: by the table's facts, or as listed here."""
    return {**{operation.name: how for operation, how in _derived()}, **_LISTED}


def _derived() -> Iterator[tuple[Operation, How]]:
    for operation in operations():
        body = made_function(operation.name)
        if isinstance(operation, Noise):
            if body is None or body.__module__.startswith("momentprop."):
                yield operation, noise
        elif body is None and operation.along is not None:
            yield operation, _along
        elif body is None and _is_pointwise(operation):
            yield operation, pointwise


def _is_pointwise(operation: Operation) -> bool:
    if isinstance(operation, Linear) and (operation.diagonal or operation.converts):
        return True
    return isinstance(operation, Elementwise) or operation.pointwise is not None
