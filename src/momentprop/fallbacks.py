r"""Fallbacks for operations without a rule.

They act only if `propagate(fallback=...)` asks for one, because a rule knows more about its operation. As everywhere,
the elements of the result are assumed to be independent.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Kind, MissingRule, Operand, where
from momentprop.dispatch.context import Fallback
from momentprop.dispatch.rule_table import operation_named
from momentprop.kernels.quadrature import quadrature as quadrature_kernel
from momentprop.torch_compat import pytrees as pytree
from momentprop.values import Independent

DRAWS = 512
"""The number of draws of `monte_carlo`, which gives a deviation to 3 %."""

DIRECTIONS = 64
"""The number of random directions of `linearize`, used if there are more inputs than that."""


def quadrature(
    kind: type[Operand], function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Moments of an elementwise operation by quadrature; other operations raise an error.

    Error: 1e-5 for smooth functions, 0.07 at kinks away from zero, 0.7 at jumps there
    """
    if torch.compiler.is_compiling():
        raise MissingRule(
            "quadrature cannot check while compiling whether an operation is elementwise: register a rule for it"
        )
    plain = _Plain(kind, function, args, kwargs)
    if len(plain.values) > 1 or not _is_elementwise(function, plain):
        raise MissingRule(
            f"{function.__name__!r} at {where()} has no rule and is not a function of each element of one value, "
            "so quadrature cannot help: try fallback='monte_carlo'"
        )
    return plain.result(lambda _: plain.values[0].through(quadrature_kernel(plain), plain))


def monte_carlo(
    kind: type[Operand], function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Moments of any operation from draws of its inputs; gradients flow through the draws.

    Error: 3 % of the deviation and 4 % of a deviation of the mean, at random
    """
    plain = _Plain(kind, function, args, kwargs)
    inputs = [value.sample(DRAWS) for value in plain.values]
    try:
        draws: Sequence[Tensor] = torch.func.vmap(
            lambda *drawn: tuple(_floating(plain(*drawn))), randomness="different"
        )(*inputs)
    except Exception:  # without support by `vmap`, draw by draw
        singly = [_floating(plain(*drawn)) for drawn in zip(*inputs, strict=True)]
        draws = [torch.stack(together) for together in zip(*singly, strict=True)]

    def moments(i: int) -> Independent:
        variance, mean = torch.var_mean(draws[i], 0)
        return plain.values[0].of(mean, variance)

    return plain.result(moments)


def linearize(kind: type[Operand], function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    r"""Moments of a differentiable operation to first order, $\sigma'^2_j = \sum_i J_{ji}^2\sigma_i^2$.

    With many inputs, the squares are averaged over directions of random signs, $E(\sum_i J_{ji}\sigma_i\epsilon_i)^2$,
    which is exact for elementwise operations. With few, each input is a direction of its own.

    Error: of second order in the deviations; beside it, with more than 64 inputs of which several matter to an output,
    9 % of the deviation at random
    """
    plain = _Plain(kind, function, args, kwargs)
    means = tuple(value.loc for value in plain.values)
    deviations = [value.stddev for value in plain.values]

    def squares(direction: Sequence[Tensor]) -> list[Tensor]:
        along = tuple(sign * deviation for sign, deviation in zip(direction, deviations, strict=True))
        changes: Any = torch.func.jvp(lambda *tensors: tuple(_floating(plain(*tensors))), means, along)[1]
        return [change**2 for change in changes]

    directions, weight = _directions(means)
    terms = [squares(direction) for direction in directions]
    certain = _floating(plain.at_means)
    return plain.result(
        lambda i: plain.values[0].of(certain[i], weight * torch.stack([term[i] for term in terms]).sum(0))
    )


_FALLBACKS: dict[str, Fallback] = {"quadrature": quadrature, "monte_carlo": monte_carlo, "linearize": linearize}


def named(fallback: str | Fallback | None) -> Fallback | None:
    """Return the fallback with this name; anything but a name is returned unchanged."""
    if not isinstance(fallback, str):
        return fallback
    if fallback not in _FALLBACKS:
        raise ValueError(f"unknown fallback {fallback!r}: choose one of {', '.join(map(repr, _FALLBACKS))}")
    return _FALLBACKS[fallback]


class _Plain:
    """An operation as a function of plain tensors, which replace the values among its arguments."""

    def __init__(
        self, kind: type[Operand], function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if not issubclass(kind, Independent):
            kind.without_rule(function, args, kwargs)
        self.function = function
        self.leaves, self.structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=_is_value)
        self.places = [i for i, leaf in enumerate(self.leaves) if _is_value(leaf)]
        self.values: list[Independent] = [self.leaves[place] for place in self.places]
        means = [value.loc.clone() for value in self.values]
        self.at_means = self._apply(means)
        self.in_place = self.at_means is means[0]  # an in-place operation returns its first argument

    def __call__(self, *tensors: Tensor) -> Any:
        return self._apply([tensor.clone() for tensor in tensors])  # an in-place operation writes into its input

    def _apply(self, tensors: Sequence[Tensor]) -> Any:
        filled = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, self.structure)
        return self.function(*args, **kwargs)

    def result(self, moments: Callable[[int], Independent]) -> Any:
        """Return the result with `moments(i)` as its `i`-th floating-point tensor; in place, write it back."""
        if self.in_place:
            target, made = self.values[0], moments(0)
            if target.memory:
                raise MissingRule(f"{self.function.__name__!r} at {where()} has no rule and would write to a view")
            target.loc, target.variance, target.origin = made.loc, made.variance, None  # type: ignore[misc]
            return target
        count = itertools.count()
        return pytree.tree_map(lambda leaf: moments(next(count)) if _is_floating(leaf) else leaf, self.at_means)


def _is_elementwise(function: Callable[..., Any], plain: _Plain) -> bool:
    """Return whether an operation is elementwise, by the rule table or by a probe.

    The probe changes every second element, and checks whether any other element of the result changes.
    """
    operation, x = operation_named(function.__name__), plain.values[0].loc
    if operation.declared:
        return operation.kind is Kind.ELEMENTWISE
    with torch.no_grad():
        changed = (torch.arange(x.numel(), device=x.device) % 2 == 0).reshape(x.shape)
        before, after = plain(x), plain(torch.where(changed, x + 0.5 * (1 + x.abs()), x))
        if not isinstance(before, Tensor) or before.shape != x.shape:
            return False
        return bool(torch.equal(before.masked_fill(changed, 0.0), after.masked_fill(changed, 0.0)))


def _directions(means: tuple[Tensor, ...]) -> tuple[list[tuple[Tensor, ...]], float]:
    """Return the JVP directions, each input or random signs, and the weight of their squares."""
    if sum(mean.numel() for mean in means) > DIRECTIONS:
        signs = [tuple(torch.randint_like(mean, 2) * 2 - 1 for mean in means) for _ in range(DIRECTIONS)]
        return signs, 1 / DIRECTIONS
    ones = []
    for position, mean in enumerate(means):
        for row in torch.eye(mean.numel(), dtype=mean.dtype, device=mean.device):
            others = [torch.zeros_like(other) for other in means]
            others[position] = row.reshape(mean.shape)
            ones.append(tuple(others))
    return ones, 1.0


def _floating(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if _is_floating(leaf)]


def _is_value(x: Any) -> bool:
    return isinstance(x, Operand)


def _is_floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
