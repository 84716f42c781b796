"""Values with a single component: means (AP1) and draws (sampling)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from momentprop.values.base import Value, as_tensor
from momentprop.values.predictions import Predictions, warn_of_one_score


class Certain(Predictions, Value):
    """A value that carries one tensor, `loc`. Operations without a rule act on `loc` as they do on a tensor."""

    loc: Tensor
    needs_rules: ClassVar[bool] = False

    def __init__(self, loc: Tensor | float) -> None:
        self.loc = as_tensor(loc, "loc")

    @classmethod
    def of(cls, *parts: Any) -> Self:
        """Return a value of this type with the given tensor, without checking it."""
        value = object.__new__(cls)
        (value.loc,) = parts
        return value

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor requires a gradient."""
        return self.loc.requires_grad

    @classmethod
    def certain(cls, tensor: Tensor) -> Self:
        """Return a tensor as a value of this type."""
        return cls.of(tensor)

    @classmethod
    def without_rule(cls, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Apply the operation to `loc` and wrap the tensors that come out."""
        given = [_unwrap(x) if isinstance(x, _WRAPPED) else x for x in args]
        if not kwargs:
            return cls._wrap(function(*given))
        named = {name: _unwrap(x) if isinstance(x, _WRAPPED) else x for name, x in kwargs.items()}
        return cls._wrap(function(*given, **named))

    @classmethod
    def _wrap(cls, result: Any) -> Any:
        if isinstance(result, Tensor):
            return cls.of(result) if result.is_floating_point() else result
        if isinstance(result, list | tuple) and any(isinstance(item, Tensor) for item in result):
            items = [cls._wrap(item) for item in result]
            return result._make(items) if hasattr(result, "_make") else type(result)(items)
        return result

    def __float__(self) -> float:
        return float(self.loc)

    def __int__(self) -> int:
        return int(self.loc)

    def mutual_information(self, dim: int = -1, points: int | None = None) -> Tensor:
        """Return zero: there is no noise for the class to depend on."""
        return torch.zeros_like(self.loc.select(dim, 0))

    def _log_q(self, dim: int) -> Tensor:
        warn_of_one_score(self.loc, dim)
        return torch.log_softmax(self.loc, dim).movedim(dim, -1)

    def sample(self, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the tensor itself, or `n` copies of it along a new first dimension."""
        return self.loc if n is None else self.loc.expand(n, *self.loc.shape)


class Mean(Certain):
    r"""The mean of every unit and nothing else: the paper's AP1, a standard network.

    >>> import torch
    >>> torch.relu(Mean(torch.tensor([-1.0, 2.0])))
    Mean(loc=tensor([0., 2.]))
    """


class Sample(Certain):
    r"""One draw: noisy operations are sampled, and all others act as they do on a tensor."""


_WRAPPED = (Certain, list, tuple)


def _unwrap(argument: Any) -> Any:
    if isinstance(argument, Certain):
        return argument.loc
    if isinstance(argument, list | tuple):
        items = [_unwrap(item) for item in argument]
        return argument._make(items) if hasattr(argument, "_make") else type(argument)(items)
    return argument
