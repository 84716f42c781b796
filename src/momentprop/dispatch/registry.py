r"""Register operations by their kind, one line or one short function each.

`moves`, `linear`, `bilinear` and `elementwise` put an operation into the table; the kind's rule then serves it for
every type of value. `mixing`, `noise`, `loss`, `composite` and `plain` decorate a rule that is written out.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch.call import Call
from momentprop.dispatch.kinds import Bilinear, Elementwise, Kind, Linear, Noise, Operation, Transform
from momentprop.dispatch.operand import Operand
from momentprop.dispatch.rule_table import declare, document, made_function, operation_named, rule

Function = TypeVar("Function", bound=Callable[..., Any])
_EXACT = "Error: exact for independent elements\nSource: paper, eq. linear"


def method(name: str) -> Callable[..., Any]:
    """Return a tensor method as a function."""

    def apply(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(input, name)(*args, **kwargs)

    return apply


def torch_function(op: str) -> Callable[..., Any]:
    """Return torch's function of this name."""
    found = made_function(op) or getattr(F, op, None) or getattr(torch, op, None)
    return method(op) if found is None else found


def _registered(operation: Operation, on: type[Operand], plain: Callable[..., Any] | None, doc: str) -> None:
    operation.plain = plain or torch_function(operation.name)  # type: ignore[method-assign]
    declare(operation)
    if doc:
        document(operation.name, on, _described(operation.name, doc))


def _described(op: str, doc: str) -> Callable[..., Any]:
    def row() -> None:
        """Stand in the table for a kind's rule."""

    row.__name__ = row.__qualname__ = op
    row.__doc__ = doc
    return row


def moves(
    *ops: str, on: type[Operand], plain: Callable[..., Any] | None = None, parameters: str = "input", **facts: Any
) -> None:
    """Register operations whose result consists of a value's elements and constants."""
    for op in ops:
        operation = Linear(op, Kind.MOVES, parameters.split(), **facts)
        note = (
            " (sums and means know copies of one element, and other operations treat them as independent)"
            if operation.copies
            else ""
        )
        doc = f"Elements moved by `{op}`, means and variances alike.\n\nError: exact{note}\nSource: definition"
        _registered(operation, on, plain, doc)


def linear(
    *ops: str, on: type[Operand], plain: Callable[..., Any] | None = None, parameters: str = "input", **facts: Any
) -> Callable[[Function], Function]:
    r"""Register linear operations.

    Call it directly for weights of zero and one. Use it as a decorator on the action on squares, a function of the call
    and the variances, whose docstring becomes the row's.
    """
    made = [Linear(op, Kind.LINEAR, parameters.split(), **facts) for op in ops]
    for operation in made:
        _registered(operation, on, plain, f"Moments of `{operation.name}`: means and variances add.\n\n{_EXACT}")

    def with_squares(function: Function) -> Function:
        for operation in made:
            operation.by_squares = function
            document(operation.name, on, function)
        return function

    return with_squares


def bilinear(
    *ops: str, on: type[Operand], factors: str, plain: Callable[..., Any] | None = None, parameters: str, **facts: Any
) -> None:
    """Register sums of products of two factors, either of which can be plain."""
    first, second = factors.split()
    for op in ops:
        operation = Bilinear(op, Kind.BILINEAR, parameters.split(), factors=(first, second), **facts)
        _registered(operation, on, plain, _BILINEAR.format(op=op))


_BILINEAR = r"""Moments of `{op}`: $\mu' = \sum \mu_1\mu_2$, and the variances of the products add.

The factors are independent, and either may be plain:
$\sigma'^2 = \sum \sigma_1^2\mu_2^2 + \mu_1^2\sigma_2^2 + \sigma_1^2\sigma_2^2$.

Error: exact for independent elements
Source: paper, eq. linear (its covariance lacks the indices $ij$) and "Product"
"""


def transpose(*ops: str) -> Callable[[Function], Function]:
    r"""Register $W^\top g$ for linear operations, a function of the call and of $g$, made of forward operations."""

    def register(function: Function) -> Function:
        for op in ops:
            operation = operation_named(op)
            assert isinstance(operation, Linear), f"{op!r} is not linear, so that it has no transpose"
            operation.by_transpose = function
        return function

    return register


def elementwise(
    *ops: str, on: type[Operand], once: bool = False, **facts: Any
) -> Callable[[Callable[..., Transform]], Callable[..., Transform]]:
    """Register the elementwise function that the decorated function makes from the operation's arguments.

    If it reads the other arguments alone, and not the value, say `once`: then it makes each function once.
    """

    def register(make: Callable[..., Transform]) -> Callable[..., Transform]:
        for op in ops:
            known = operation_named(op)
            operation = known if isinstance(known, Elementwise) else Elementwise(op)
            if facts:  # one of several registrations has them
                operation.learn(**facts)
            operation.makers[on] = make
            operation.kept.clear()
            (operation.once.add if once else operation.once.discard)(on)
            declare(operation, make)
            document(op, on, make)
        return make

    return register


def _written(
    kind: Kind, ops: Sequence[str], on: type[Operand], facts: dict[str, Any], row: type[Operation] = Operation
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        parameters = signature(function).parameters
        for op in ops:
            operation = row(op, kind, list(parameters), **facts)
            if operation.along is not None:
                default = parameters[operation.along].default
                operation.default = None if default is parameters[operation.along].empty else default
            operation.plain = torch_function(op)  # type: ignore[method-assign]
            declare(operation, function)
        return rule(*ops, on=on)(function)

    return register


def mixing(*ops: str, on: type[Operand], **facts: Any) -> Callable[[Function], Function]:
    """Register the rule for operations that are nonlinear in several units."""
    return _written(Kind.MIXING, ops, on, facts)


def loss(*ops: str, on: type[Operand], **facts: Any) -> Callable[[Function], Function]:
    """Register the rule for losses, which return a plain tensor."""
    return _written(Kind.LOSS, ops, on, facts)


def composite(*ops: str, on: type[Operand], **facts: Any) -> Callable[[Function], Function]:
    """Register operations made of others: the decorated function calls them, for any type of value."""
    return _written(Kind.COMPOSITE, ops, on, facts)


def plain(*ops: str, on: type[Operand], **facts: Any) -> Callable[[Function], Function]:
    """Register the rule for operations whose result is not random."""
    return _written(Kind.PLAIN, ops, on, facts)


def noise(
    *ops: str,
    on: type[Operand],
    acts: Callable[[Call], bool] | None = None,
    shared: Callable[[Call], Sequence[int]] | None = None,
    **facts: Any,
) -> Callable[[Function], Function]:
    """Register the rule for operations that draw something.

    `acts` says whether a call draws anything; `shared`, along which dimensions all units share one draw.
    """
    return _written(Kind.NOISE, ops, on, {"by_acting": acts, "by_sharing": shared, **facts}, Noise)
