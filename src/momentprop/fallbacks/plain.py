"""An operation without a rule as a function of plain tensors."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from momentprop.dispatch import MissingRule, Operand, where
from momentprop.dispatch.dependence import any_related, warn_dependent
from momentprop.torch_compat import pytrees as pytree
from momentprop.torch_compat.tensors import writes
from momentprop.values import Independent
from momentprop.values.origin import Origin


class Plain:
    """An operation as a function of plain tensors, one for each of the variables that its values are made of.

    A value that is given twice is one variable. So is the origin of several values, as in `f(x, x.tanh())`.
    """

    def __init__(
        self, kind: type[Operand], function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if not issubclass(kind, Independent):
            kind.without_rule(function, args, kwargs)
        self.function = function
        self.leaves, self.structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=_is_value)
        self.places = [i for i, leaf in enumerate(self.leaves) if _is_value(leaf)]
        self.values: list[Independent] = [self.leaves[place] for place in self.places]
        self.variables, self.ways = _variables(self.values)
        if len(self.variables) > 1 and any_related([self.values[i] for i in _firsts(self.ways)]):
            warn_dependent(function.__name__)
        leaves = self._leaves([value.loc for value in self.variables])
        self.at_means = self._apply(leaves)
        first = leaves[self.places[0]]
        self.in_place = self.at_means is first and _was_written(first)
        if not floating(self.at_means):
            raise MissingRule(
                f"{function.__name__!r} at {where()} has no rule and gives no floating-point tensor, so that its "
                "result cannot be a random value: use method='sample'"
            )

    def __call__(self, *tensors: Tensor) -> Any:
        """Apply the operation to a tensor for each variable."""
        return self._apply(self._leaves(tensors))

    def _leaves(self, tensors: Sequence[Tensor]) -> list[Any]:
        leaves = list(self.leaves)
        fresh = [tensor.clone() for tensor in tensors]  # an in-place operation writes into its input
        for place, (variable, origin) in zip(self.places, self.ways, strict=True):
            base = fresh[variable]
            leaves[place] = base if origin is None else origin.function(base, *origin.parameters)
        return leaves

    def _apply(self, leaves: list[Any]) -> Any:
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.function(*args, **kwargs)

    def result(self, moments: Callable[[int], Independent]) -> Any:
        """Return the result with `moments(i)` as its `i`-th floating-point tensor; in place, write it back."""
        if self.in_place:
            target, made = self.values[0], moments(0)
            if target.memory:
                raise MissingRule(
                    f"{self.function.__name__!r} at {where()} has no rule and would write to a view: use the "
                    "out-of-place operation"
                )
            target.loc, target.variance = made.loc, made.variance
            target.origin = target.elements = None  # type: ignore[misc]
            return target
        count = itertools.count()
        return pytree.tree_map(lambda leaf: moments(next(count)) if _is_floating(leaf) else leaf, self.at_means)


def _variables(values: list[Independent]) -> tuple[list[Independent], list[tuple[int, Origin | None]]]:
    """Return the independent variables, and for each value the number of its variable and its function of it, if any.

    A value is a variable by itself, unless another value has the same base: then the base is.
    """
    sources = [value.source for value in values]
    variables: list[Independent] = []
    ways: list[tuple[int, Origin | None]] = []
    bases: list[tuple[Origin, int]] = []
    for value, source in zip(values, sources, strict=True):
        kin = [other for other, origin in zip(values, sources, strict=True) if origin.has_base_of(source)]
        alone = all(other is value for other in kin)
        number = next((number for base, number in bases if base.has_base_of(source)), len(variables))
        if number == len(variables):
            bases.append((source, number))
            variables.append(value if alone else value.of(source.loc, source.variance))
        ways.append((number, None if alone or source.operations == 0 else source))
    return variables, ways


def _firsts(ways: list[tuple[int, Origin | None]]) -> list[int]:
    """Return the position of the first value of each variable."""
    numbers = [number for number, _ in ways]
    return [numbers.index(number) for number in sorted(set(numbers))]


def _was_written(tensor: Tensor) -> bool:
    """Return whether a fresh copy was written to; a function that returns its argument as it is has not."""
    return tensor.is_inference() or writes(tensor) != 0


def floating(tree: Any) -> list[Tensor]:
    """Return the floating-point tensors of a result."""
    return [leaf for leaf in pytree.tree_leaves(tree) if _is_floating(leaf)]


def _is_value(x: Any) -> bool:
    return isinstance(x, Operand)


def _is_floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
