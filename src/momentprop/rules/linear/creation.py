r"""Plain tensors of a value's shape, type and device, and questions about its elements."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.dispatch.registry import plain
from momentprop.values import Certain, Independent
from momentprop.values.base import Value


def _register_plain(op: str, function: Callable[..., Tensor]) -> None:
    def create(input: Any, *args: Any, **kwargs: Any) -> Tensor:
        first: Tensor = getattr(input, input.components[0])
        return function(first, *args, **kwargs)

    create.__name__ = op
    create.__doc__ = f"A plain tensor by `{op}`, of the value's type and device.\n\nError: exact\nSource: definition"
    plain(op, on=Value)(create)
    rule(op, on=Certain)(create)  # which would take the result for a value, as any other operation's result


for _op in "zeros ones empty full rand randn randint".split():
    _register_plain(f"{_op}_like", getattr(torch, f"{_op}_like"))
for _op in "zeros ones empty full tensor empty_strided".split():
    _register_plain(f"new_{_op}", getattr(Tensor, f"new_{_op}"))


def _register_question(op: str, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
    function: Callable[[Tensor], Tensor] = getattr(torch, op)

    def ask(input: Independent) -> Tensor:
        return combine(function(input.loc), function(input.variance))

    ask.__name__ = op
    ask.__doc__ = f"The answer of `{op}` for mean and variance together.\n\nError: exact\nSource: definition"
    plain(op, on=Independent)(ask)


_register_question("isnan", torch.logical_or)
_register_question("isinf", torch.logical_or)
_register_question("isfinite", torch.logical_and)


def _register_property(op: str) -> None:
    function: Callable[[Tensor], Any] = getattr(torch, op)

    def tell(input: Any) -> Any:
        return function(getattr(input, input.components[0]))

    tell.__name__ = op
    tell.__doc__ = f"The answer of `{op}` for the components.\n\nError: exact\nSource: definition"
    plain(op, on=Value)(tell)


for _op in ("is_complex", "is_floating_point", "is_signed", "numel"):
    _register_property(_op)
