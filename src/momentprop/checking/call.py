"""A model with its arguments and its noise: what every method runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from momentprop.checking.picked_units import name_of_output
from momentprop.values import Value


@dataclass
class Call:
    """A model with its arguments and its noise: what every method runs."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    noise: dict[str, Any]  # `input_variance`, `dropout` and `fallback`, as `propagate` takes them
    seed: int

    @property
    def output(self) -> str:
        """The name of the model's own output."""
        return name_of_output(self.model)

    @property
    def has_modules(self) -> bool:
        """Whether the model has modules to look into."""
        return isinstance(self.model, nn.Module)

    def by(self, method: Callable[..., Any], record: bool = False) -> Any:
        """Run a method that has the interface of `propagate`."""
        return method(self.model, *self.args, **self.kwargs, **self.noise, seed=self.seed, record=record)

    def plain(self) -> Any:
        """Run the model itself."""
        return self.model(*self.args, **self.kwargs)


def batch_size(call: Call) -> int:
    """The number of inputs: the rows of the first tensor among the arguments."""
    first = first_tensor(call)
    return int(first.shape[0]) if first is not None and first.ndim else 1


def first_tensor(call: Call) -> Any:
    """The first tensor or value among the arguments."""
    leaves = pytree.tree_leaves((call.args, call.kwargs), is_leaf=is_tensor)
    return next((leaf for leaf in leaves if is_tensor(leaf)), None)


def is_tensor(x: Any) -> bool:
    """Whether an argument is a tensor or a value."""
    return isinstance(x, Tensor | Value)
