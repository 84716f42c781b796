"""The mode that is active while a model is propagated: it sees every torch operation."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from momentprop.dispatch import Call, Context, dispatch, where
from momentprop.dispatch.composites import OPENED
from momentprop.dispatch.context import Fallback, Watcher
from momentprop.dispatch.operand import values_in
from momentprop.dispatch.rule_table import operation_named
from momentprop.randomness import DRAWS
from momentprop.stand_ins import StandIns, as_given, is_about, own_method, writes
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.dynamo import traceable
from momentprop.torch_compat.modes import bare
from momentprop.values import Certain, Independent, Sample, Value
from momentprop.values.conversion import as_type, is_floating, is_value


class Propagation(Context):
    """Turns plain tensors that meet noise into values, and decides what happens to operations without a rule."""

    def __init__(self, kind: type[Value], fallback: Fallback | None = None, watcher: Watcher | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.fallback = fallback
        self.watcher = watcher
        self.stand_ins = StandIns(kind)
        self.made: dict[int, tuple[Any, Any]] = {}  # what values of other types became; these are kept for their ids

    def start(self) -> None:
        """Begin a pass: no plain tensor has become a value yet."""
        self.stand_ins = StandIns(self.kind)
        self.made = {}

    def seen(self, x: Any) -> Any:
        """Return the value that a plain tensor has become in this pass, or anything else itself."""
        if not self.stand_ins:
            return x
        with bare():
            return self.stand_ins.seen(x)

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Torch calls this for every operation inside the context."""
        kwargs = kwargs or {}
        if self.suspended:
            return function(*args, **kwargs)
        function = getattr(function, "of_tensor", function)  # of a value's method
        return self.run(function, function, args, kwargs, values_in(args, kwargs))

    def run(
        self,
        function: Callable[..., Any],
        body: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        values: Sequence[Any],
    ) -> Any:
        """Apply an operation with these values among its arguments; `body` is its effect on plain tensors."""
        name = getattr(function, "__name__", "")
        stand_ins = self.stand_ins
        if name in DRAWS and self.kind is not Sample and not _initializes(args, kwargs):
            warn_of_draw(name, where(), self.kind)
        given = args
        if (stand_ins.by_memory or stand_ins.by_identity) and not is_about(name):
            args, kwargs = stand_ins.among(args, kwargs)
            values = values_in(args, kwargs)
            own = own_method(function, name, args[0] if args else None)
            if own is not None:
                return own(*args, **kwargs)
        if not values:
            return self._on_plain(name, function, body, args, kwargs)
        for value in values:
            if type(value) is not self.kind and isinstance(value, Independent | Certain):
                args, kwargs, values = self._converted(args, kwargs)
                break
        if name[-1:] == "_" and args and isinstance(args[0], Tensor) and writes(name) and not is_about(name):
            args = (self.stand_ins.target(args[0], name, values), *args[1:])
            values = values_in(args, kwargs)
        if "out" in kwargs:
            kwargs = {**kwargs, "out": self.stand_ins.target(kwargs["out"], name, values)}
        if name in OPENED:
            with self:  # noise on plain tensors may be inside
                return OPENED[name](*args, **kwargs)
        result = dispatch(function, args, kwargs, self, values)
        return result if args is given else as_given(result, given, args)

    def _converted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the arguments with any moments among them, such as a random weight, as values of this kind.

        One that occurs twice is drawn once.
        """

        def converted(x: Any) -> Any:
            if not isinstance(x, Independent | Certain) or type(x) is self.kind:
                return x
            if id(x) not in self.made:
                self.made[id(x)] = x, as_type(x, self.kind)
            return self.made[id(x)][1]

        args, kwargs = pytree.tree_map(converted, (args, kwargs), is_leaf=is_value)
        return args, kwargs, values_in(args, kwargs)

    def _on_plain(
        self,
        name: str,
        function: Callable[..., Any],
        body: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Apply an operation without a value among its arguments; noise turns the first one into a value."""
        if name in OPENED:
            with self:
                return OPENED[name](*args, **kwargs)
        operation = operation_named(name)
        if operation.acts(Call(operation, args, kwargs, ())):
            return self._with_noise(function, args, kwargs)
        return traceable(name, body)(*args, **kwargs)

    def _with_noise(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        first = next(i for i, leaf in enumerate(leaves) if is_floating(leaf))
        name = getattr(function, "__name__", "")
        operation = operation_named(name)
        in_place = Call(operation, args, kwargs, ()).in_place or (name[-1:] == "_" and writes(name))
        lifted = self.stand_ins.target(leaves[first], operation.name, ()) if in_place else leaves[first]
        lifted = as_type(lifted, self.kind)
        given, named = pytree.tree_unflatten([*leaves[:first], lifted, *leaves[first + 1 :]], structure)
        result = dispatch(function, given, named, self)
        # noise that does not act leaves a tensor plain
        return leaves[first] if result is lifted and not in_place else result


def _initializes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation writes into a parameter, as when a lazy layer draws its first weights."""
    return any(isinstance(x, nn.Parameter) for x in (*args[:1], *kwargs.values()))


def warn_of_draw(source: str, place: str, kind: type[Value]) -> None:
    """Warn that the model draws its own random numbers, which only `method="sample"` treats as random."""
    warnings.warn(
        f"the model draws random numbers with {source!r} at {place}; a pass with {kind.__name__} values treats them as "
        "constants, and their variance is lost: use a layer that momentprop knows, or method='sample'; "
        "`momentprop.posteriors.from_variational` converts layers of bayesian-torch and blitz",
        stacklevel=3,
    )
