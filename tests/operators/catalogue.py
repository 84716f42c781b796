"""The operators of torch's `op_db` that have a rule, their spellings, and their sample inputs."""

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from momentprop import MissingRule, Normal
from momentprop.dispatch import Call, Kind, table
from momentprop.dispatch.natives import in_our_words
from momentprop.dispatch.rule_table import operation_named, order_of
from momentprop.dispatch.spelling import spelled

SPELLINGS = {
    "function": "op",
    "method": "method_variant",
    "in place": "inplace_variant",
    "operator": "operator_variant",
    "in-place operator": "inplace_operator_variant",
}
IN_PLACE = ("in place", "in-place operator")
_ROOMS = {"nn.functional.": "", "linalg.": "linalg_", "special.": "special_"}


@dataclass(frozen=True)
class Sample:
    """Arguments of an operator: the leaves of a tree of (first argument, the others, keywords)."""

    leaves: tuple[Any, ...]
    spec: TreeSpec

    @classmethod
    def of(cls, sample: Any) -> "Sample":
        leaves, spec = tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        return cls(tuple(leaves), spec)

    @property
    def floating(self) -> list[int]:
        """The leaves that may be random."""
        return [i for i, leaf in enumerate(self.leaves) if _is_floating(leaf)]

    def variants(self) -> Iterator[tuple[int, ...]]:
        """Yield which leaves are random: the first, each of the others, all of them."""
        places = self.floating
        yield from ((place,) for place in places)
        if len(places) > 1:
            yield tuple(places)

    def call(self, function: Callable[..., Any], stand_in: Callable[[Tensor], Any], places: tuple[int, ...]) -> Any:
        """Call a function with other things in some places, and copies of the tensors in all others."""
        leaves = [stand_in(leaf.clone()) if i in places else _copy(leaf) for i, leaf in enumerate(self.leaves)]
        first, args, kwargs = tree_unflatten(leaves, self.spec)
        return function(first, *args, **kwargs)

    def __str__(self) -> str:
        first, args, kwargs = tree_unflatten([_short(leaf) for leaf in self.leaves], self.spec)
        return ", ".join([str(first), *map(str, args), *(f"{name}={each}" for name, each in kwargs.items())])


@dataclass(frozen=True)
class Operator:
    """A row of `op_db`, and the operation of the rule table that serves it."""

    info: Any
    op: str

    @property
    def name(self) -> str:
        return str(self.info.full_name)

    @property
    def kind(self) -> Kind:
        return operation_named(self.op).kind

    def kind_of(self, sample: Sample, places: tuple[int, ...]) -> Kind:
        """Return the kind that the operator is of where some arguments are random."""
        operation = operation_named(self.op)

        def asked(*args: Any, **kwargs: Any) -> Kind:
            args, kwargs = in_our_words(self.info.op, operation, args, kwargs)
            return operation.kind_of(Call(operation, args[::-1] if spelled(self.info.name).reflected else args, kwargs))

        try:
            return sample.call(asked, lambda tensor: Normal.of(tensor, torch.zeros_like(tensor)), places)
        except (MissingRule, TypeError):  # what has no rule
            return operation.kind

    def spellings(self) -> dict[str, Callable[..., Any]]:
        """Return the functions that spell the operator, by how they do."""
        found = {how: getattr(self.info, variant) for how, variant in SPELLINGS.items()}
        found |= {f"alias {alias.name}": alias.op for alias in self.info.aliases}
        return {how: _bound(function) for how, function in found.items() if function is not None}

    def dtypes(self) -> set[torch.dtype]:
        return set(self.info.dtypes)

    def samples(self, dtype: torch.dtype) -> list[Sample]:
        """Return torch's sample inputs in a floating-point type, the same ones at every call."""
        return [] if dtype not in self.dtypes() else _quietly(self.info.sample_inputs, dtype)

    def errors(self) -> list[Sample]:
        """Return the inputs that torch refuses."""
        return [] if self.info.error_inputs_func is None else _quietly(self.info.error_inputs, None)

    def __str__(self) -> str:
        return self.name


def _quietly(make: Callable[..., Any], dtype: torch.dtype | None) -> list[Sample]:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        made = make("cpu") if dtype is None else make("cpu", dtype)
        return [Sample.of(getattr(each, "sample_input", each)) for each in made]


def _bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of tensors as users call it, `x.add(y)`, and any other function as it is."""
    name = getattr(function, "__name__", "")
    if getattr(Tensor, name, None) is not function:
        return function
    return lambda first, *args, **kwargs: getattr(first, name)(*args, **kwargs)


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.layout is torch.strided


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _short(leaf: Any) -> Any:
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if isinstance(leaf, Tensor) else leaf


def rule_name(name: str) -> str:
    """Return the name in the rule table of an operator of `op_db`."""
    for room, prefix in _ROOMS.items():
        if name.startswith(room):
            name = prefix + name.removeprefix(room)
    return spelled(name).op


@functools.cache
def known() -> frozenset[str]:
    """Return the operations that a `Normal` has a rule for."""
    served = order_of(Normal)
    return frozenset(row.op for row in table() if row.on in served)


@functools.cache
def all_operators() -> tuple[Any, ...]:
    """Return all rows of `op_db`. Its random operators set a seed of their own at each call; here they do not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as invocations
    invocations.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)
    return tuple(invocations.op_db)


@functools.cache
def operators() -> tuple[Operator, ...]:
    """Return the operators with a rule, under their own name or under that of an alias."""
    found = []
    for info in all_operators():
        names = [rule_name(name) for name in (info.name, *(alias.name for alias in info.aliases))]
        for op in names:
            if op in known():
                found.append(Operator(info, op))
                break
    return tuple(found)
