r"""Fallbacks for operations without a rule.

They act only if `propagate(fallback=...)` asks for one, because a rule knows more about its operation. As everywhere,
the elements of the result are assumed to be independent.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Kind, MissingRule, Operand, where
from momentprop.dispatch.context import Fallback
from momentprop.dispatch.rule_table import operation_named
from momentprop.fallbacks.plain import Plain, floating
from momentprop.fallbacks.probe import draws_numbers, is_elementwise
from momentprop.kernels.quadrature import quadrature as quadrature_kernel
from momentprop.values import Independent

__all__ = ["DIRECTIONS", "DRAWS", "linearize", "monte_carlo", "quadrature"]

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
            "inside `torch.compile`, quadrature cannot check whether an operation is elementwise: add a rule for it"
        )
    plain = Plain(kind, function, args, kwargs)
    _refuse_draws(plain, "quadrature")
    if len(plain.variables) > 1 or not _is_elementwise(plain):
        raise MissingRule(
            f"{function.__name__!r} at {where()} has no rule and is not a function of each element of one value, "
            "so quadrature cannot help: try fallback='monte_carlo'"
        )
    return plain.result(lambda _: plain.variables[0].through(quadrature_kernel(plain), plain))


def monte_carlo(
    kind: type[Operand], function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Moments of any operation from draws of its inputs; gradients flow through the draws.

    Error: 3 % of the deviation and 4 % of a deviation of the mean, at random
    """
    plain = Plain(kind, function, args, kwargs)
    inputs = [value.sample(DRAWS) for value in plain.variables]
    try:
        draws: Sequence[Tensor] = torch.func.vmap(
            lambda *drawn: tuple(floating(plain(*drawn))), randomness="different"
        )(*inputs)
    except Exception:  # without support by `vmap`, draw by draw
        singly = [floating(plain(*drawn)) for drawn in zip(*inputs, strict=True)]
        if len({tuple(tensor.shape for tensor in drawn) for drawn in singly}) > 1:
            raise MissingRule(
                f"{function.__name__!r} at {where()} has no rule, and the shape of its result is random, so that it "
                "has no mean: use operations whose result always has the same shape"
            ) from None
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
    plain = Plain(kind, function, args, kwargs)
    _refuse_draws(plain, "linearize")
    means = tuple(value.loc for value in plain.variables)
    deviations = [value.stddev for value in plain.variables]

    def squares(direction: Sequence[Tensor]) -> list[Tensor]:
        along = tuple(sign * deviation for sign, deviation in zip(direction, deviations, strict=True))
        changes: Any = torch.func.jvp(lambda *tensors: tuple(floating(plain(*tensors))), means, along)[1]
        return [change**2 for change in changes]

    directions, weight = _directions(means)
    terms = [squares(direction) for direction in directions]
    certain = floating(plain.at_means)
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


def _refuse_draws(plain: Plain, name: str) -> None:
    if not torch.compiler.is_compiling() and draws_numbers(plain, *(value.loc for value in plain.variables)):
        raise MissingRule(
            f"{plain.function.__name__!r} at {where()} has no rule and draws random numbers, whose variance {name} "
            "would lose: try fallback='monte_carlo'"
        )


def _is_elementwise(plain: Plain) -> bool:
    """Return whether an operation is elementwise, by the rule table or by a probe."""
    operation, variable = operation_named(plain.function.__name__), plain.variables[0]
    if operation.declared and len(plain.values) == 1:
        return operation.kind is Kind.ELEMENTWISE
    return is_elementwise(plain, variable.loc, variable.stddev)


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
