"""One call of an operation: its arguments, and the values among them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from momentprop.dispatch.operand import Operand, values_in

_LISTS = (list, tuple)
_MAY_HOLD_VALUES = (Operand, list, tuple)


class Call:
    """An operation with its arguments, some of which are values: the argument of a kind's rule.

    A kind's rule knows nothing of the operation but its kind. It asks the call for the operation's action on other
    tensors: `call.on(*tensors)` is torch's own function with tensors in place of the values.
    """

    def __init__(
        self,
        operation: Any,  # a row of the table, of a class in `kinds`
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        values: Sequence[Any] | None = None,
    ) -> None:
        self.operation = operation
        self.args = args
        self.kwargs = kwargs
        self.values = values = values_in(args, kwargs) if values is None else values
        self.leads = len(values) == 1 and len(args) > 0 and args[0] is values[0]  # the only value is the first argument

    @property
    def op(self) -> str:
        """The name of the operation."""
        return str(self.operation.name)

    @property
    def kind(self) -> Any:
        """The operation's kind of map for these arguments."""
        return self.operation.kind_of(self)

    @property
    def in_place(self) -> bool:
        """Whether the caller set torch's parameter `inplace`."""
        position = self.operation.inplace
        return position is not None and bool(
            self.kwargs.get("inplace", False) or (len(self.args) > position and self.args[position])
        )

    def given(self, name: str, default: Any = None) -> Any:
        """Return a parameter's argument."""
        if name in self.kwargs:
            return self.kwargs[name]
        position = self.operation.positions.get(name)
        return self.args[position] if position is not None and position < len(self.args) else default

    def replaced(self, new: Mapping[str, Any]) -> "Call":
        """Return the call with other arguments for some parameters."""
        args, kwargs = list(self.args), dict(self.kwargs)
        same = True  # whether the values are this call's own, so that nobody has to search for them
        for name, argument in new.items():
            if isinstance(argument, _MAY_HOLD_VALUES) or isinstance(self.given(name), _MAY_HOLD_VALUES):
                same = False
            position = self.operation.positions.get(name, len(args))
            if name in kwargs or position >= len(args):
                kwargs[name] = argument
            else:
                args[position] = argument
        return Call(self.operation, args, kwargs, self.values if same else None)

    def on(self, *tensors: Any) -> Any:
        """Apply torch's own function to tensors in place of the values, in order."""
        if self.leads:
            return self.operation.plain(tensors[0], *self.args[1:], **self.kwargs)
        args, kwargs = self.filled(tensors)
        return self.operation.plain(*args, **kwargs)

    def of(self, *values: Any) -> "Call":
        """Return the call with other values, perhaps of another type, in place of its own."""
        args, kwargs = self.filled(values)
        return Call(self.operation, args, kwargs)

    def each(self, function: Callable[[Tensor], Tensor]) -> "Call":
        """Return the call with a function applied to every tensor and to every value's components."""
        return Call(self.operation, each_in(list(self.args), function), each_in(dict(self.kwargs), function))

    def filled(self, stand_ins: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with tensors, or other values, in place of the values."""
        if self.leads:
            return [stand_ins[0], *self.args[1:]], dict(self.kwargs)
        names, used, filled = list(self.kwargs), 0, []
        for argument in (*self.args, *self.kwargs.values()):
            if isinstance(argument, Operand):
                argument, used = stand_ins[used], used + 1
            elif isinstance(argument, _LISTS):
                inside = values_in(argument, {})
                if inside:
                    rest = iter(stand_ins[used : used + len(inside)])
                    argument = [next(rest) if isinstance(item, Operand) else item for item in argument]
                    used += len(inside)
            filled.append(argument)
        count = len(self.args)
        return filled[:count], dict(zip(names, filled[count:], strict=True))


def each_in(argument: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to a tensor argument, and to all tensors in values, lists and dictionaries."""
    if isinstance(argument, Operand):
        return argument.each(function)
    if isinstance(argument, Tensor):
        return function(argument)
    if type(argument) is dict:
        return {name: each_in(item, function) for name, item in argument.items()}
    return [each_in(item, function) for item in argument] if type(argument) in (list, tuple) else argument
