"""An operation on draws in one batch, and how to run it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from momentprop.dispatch.operand import values_in
from momentprop.values.folded import Fold, Folded

Function = Callable[..., Any]


class Step:
    """An operation on draws in one batch."""

    __slots__ = ("args", "fold", "function", "kwargs", "op", "values")

    def __init__(self, fold: Fold, op: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.fold, self.op, self.function, self.args, self.kwargs = fold, op, function, args, kwargs
        self.values: list[Any] = values_in(args, kwargs)

    def require(self, holds: bool) -> None:
        """Refuse the operation unless a condition holds."""
        if not holds:
            self.fold.refuse(self.op)

    def given(self, name: str, position: int, default: Any = None) -> Any:
        """Return an argument."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else default

    @property
    def alone(self) -> Folded:
        """The first argument, which must be the only value."""
        if len(self.values) != 1 or not self.args or self.values[0] is not self.args[0]:
            self.fold.refuse(self.op)
        return self.values[0]  # type: ignore[no-any-return]

    def on(self, first: Tensor, *more: Any) -> Any:
        """Run the operation with a tensor in place of the first argument, and perhaps other arguments."""
        return self.function(first, *(more or self.args[1:]), **self.kwargs)

    def filled(self, tensor_of: Function) -> Any:
        """Run the operation with tensors in place of the values."""
        args = [_filled(argument, tensor_of) for argument in self.args]
        return self.function(*args, **{name: _filled(x, tensor_of) for name, x in self.kwargs.items()})


How = Callable[[Step], Any]


def _filled(argument: Any, tensor_of: Function) -> Any:
    if isinstance(argument, Folded):
        return tensor_of(argument)
    return [_filled(item, tensor_of) for item in argument] if isinstance(argument, list | tuple) else argument
