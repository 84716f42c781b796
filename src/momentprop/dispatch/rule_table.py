r"""One table: what kind of map each operation is, and the rules for operations and for kinds.

A torch operation that meets a value asks this table for the rule of (operation, type of the value). If there is none,
it asks for the rule of (kind of the operation, type of the value). Types are looked up in the order of `order_of`. An
operation's rule is a pure function that takes torch's own arguments, with values in place of tensors:

>>> import torch, momentprop
>>> @momentprop.rule("frac", on=momentprop.Normal)
... def frac(input):
...     '''Moments of the fractional part, taken here as if the integer part were certain.'''
...     return input.of(input.loc.frac(), input.variance)
>>> torch.frac(momentprop.Normal(torch.tensor([1.25]), 0.01)).loc
tensor([0.2500])
>>> momentprop.dispatch.forget("frac", on=momentprop.Normal)

A kind's rule takes a `Call` and serves all operations of that kind:

>>> from momentprop.dispatch import Kind, kind_of
>>> x, weight = momentprop.Normal(torch.ones(2), 1.0), torch.ones(2)
>>> kind_of("mul", x, weight), kind_of("mul", x, x * 2)
(<Kind.LINEAR: 'linear'>, <Kind.BILINEAR: 'bilinear'>)
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch.compiler import is_dynamo_compiling

from momentprop.dispatch.call import Call
from momentprop.dispatch.kinds import Kind, Operation
from momentprop.dispatch.operand import MissingRule, Operand
from momentprop.dispatch.place import where
from momentprop.dispatch.spelling import spell, spelled

F = TypeVar("F", bound=Callable[..., Any])

_OPERATIONS: dict[str, Operation] = {}
_RULES: dict[tuple[str, type[Operand]], Callable[..., Any]] = {}
_RULES_OF_KINDS: dict[tuple[str, type[Operand]], Callable[..., Any]] = {}  # by names, which dynamo can hash
_ONLY: dict[tuple[str, type[Operand]], Kind] = {}  # the kind that an operation's rule serves, if not all
_DOCUMENTS: dict[tuple[str, type[Operand]], Callable[..., Any]] = {}  # rows that a kind serves, with their docstrings
_MADE: dict[str, Callable[..., Any]] = {}  # functions that are our operations, not torch's
_ORDERS: dict[type[Operand], tuple[type[Operand], ...]] = {}
_NEW = object()
_FOUND: dict[tuple[str, type[Operand], Kind | None], Any] = {}
MET: dict[tuple[str, type[Operand]], "Met"] = {}


class Rule(NamedTuple):
    """A row of the rule table: `function` serves `op` for values of type `on`."""

    op: str
    on: type[Operand]
    function: Callable[..., Any]

    @property
    def kind(self) -> Kind:
        """The operation's kind when every argument that can be random is."""
        return operation_named(self.op).kind

    @property
    def by_kind(self) -> bool:
        """Whether the kind's rule serves this row, so that one line registers it."""
        return (self.op, self.on) in _DOCUMENTS

    @property
    def summary(self) -> str:
        """The first sentence of the rule's docstring."""
        return _first_sentence(inspect.getdoc(self.function) or "")

    @property
    def error(self) -> str:
        """The docstring's text after `Error:`: the rule's measured error or `exact`."""
        return self._field("Error")

    @property
    def source(self) -> str:
        """The docstring's text after `Source:`: where the formula comes from."""
        return self._field("Source")

    def _field(self, name: str) -> str:
        found = re.search(rf"^{name}: (.*?)(?:\n\n|\n\w+: |\Z)", inspect.getdoc(self.function) or "", re.M | re.S)
        return " ".join(found[1].split()).rstrip(".") if found else ""


class Met(NamedTuple):
    """What the table knows about a function that meets values of a type, by its name alone."""

    op: str
    reflected: bool
    in_place: bool
    operation: Operation
    rule: tuple[Callable[..., Any], bool] | None  # as `resolve` returns it
    always: bool  # this rule serves all arguments
    of_one: tuple[Callable[..., Any], bool] | None  # the rule that serves all calls with a single value, if one does


def rule(*ops: str | Kind, on: type[Operand], kind: Kind | None = None) -> Callable[[F], F]:
    """Register the decorated function as the rule for `ops` on values of type `on` and its subtypes.

    An operation's rule declares torch's whole parameter list, with torch's names and defaults: eager torch passes
    keywords where `torch.compile` passes the caller's positions. Rules declare `inplace` but ignore it; the dispatcher
    handles it. An operation of undeclared kind counts as *mixing*. With a `kind`, the rule serves only calls for which
    the operation has this kind.

    A `Kind` instead of a name registers a kind's rule, which takes a `Call`: see `docs/new_value_type.md`.
    """

    def register(function: F) -> F:
        for op in ops:
            if isinstance(op, Kind):
                _RULES_OF_KINDS[op.value, on] = function
            else:
                _take_up(_OPERATIONS.get(op) or Operation(op, Kind.MIXING), function)
                _RULES[op, on] = function
                _ONLY.pop((op, on), None)
                if kind is not None:
                    _ONLY[op, on] = kind
        _forget_found()
        return function

    return register


def declare(operation: Operation, function: Callable[..., Any] | None = None) -> None:
    """Put an operation into the table; `function`, one of its rules, shows the position of torch's `inplace`."""
    operation.declared = True
    _take_up(operation, function)


def _take_up(operation: Operation, function: Callable[..., Any] | None) -> None:
    spell(operation.name)
    _OPERATIONS[operation.name] = operation
    MET.clear()
    if function is not None:
        names = list(inspect.signature(function).parameters)
        if "inplace" in names:
            operation.inplace = names.index("inplace")


def document(op: str, on: type[Operand], function: Callable[..., Any]) -> None:
    """List in the table that the rule of its kind serves `op` on a type, with a function's docstring."""
    _DOCUMENTS[op, on] = function


def forget(op: str | Kind, *, on: type[Operand]) -> None:
    """Remove the rule for `op` on exactly the type `on`."""
    if isinstance(op, Kind):
        del _RULES_OF_KINDS[op.value, on]
    else:
        del _RULES[op, on]
    _forget_found()


def _forget_found() -> None:
    _FOUND.clear()
    MET.clear()


def order_of(on: type[Operand]) -> tuple[type[Operand], ...]:
    """Return the types whose rules serve a type: itself, those it borrows from, and their bases.

    A type that needs no rules takes none from the base of all values: without a rule it acts like a tensor.
    """
    if is_dynamo_compiling():  # code that reads a cache is recompiled whenever the cache grows
        return _order(on)
    if on not in _ORDERS:
        _ORDERS[on] = _order(on)
    return _ORDERS[on]


def _order(on: type[Operand]) -> tuple[type[Operand], ...]:
    bases = [base for base in on.__mro__ if issubclass(base, Operand)]
    if not on.needs_rules:
        bases = [base for base in bases if not base.needs_rules]
    order = [bases[0]]
    for base in bases:
        order += [base, *base.borrows]
    return tuple(dict.fromkeys(order))


def find(op: str, on: type[Operand]) -> Callable[..., Any] | None:
    """Return an operation's own rule, not its kind's, for values of type `on`, or None."""
    found = resolve(op, on, None)
    return None if found is None else found[0]


def met(name: str, on: type[Operand]) -> Met:
    """Return what the table knows about a function of this name on values of type `on`, and keep it in `MET`."""
    found = _met(name, on)
    if not is_dynamo_compiling():  # see `order_of`
        MET[name, on] = found
    return found


def _met(name: str, on: type[Operand]) -> Met:
    op, reflected, in_place = spelled(name)
    operation = operation_named(op)
    has_kind = on.needs_rules and operation.declared
    depends = has_kind and operation.has_kinds  # each call is asked for its kind, which may also be refused
    rule = _searched(op, on, operation.kind if has_kind and not depends else None)
    of_one = operation.kind_of_one if depends else None
    return Met(op, reflected, in_place, operation, rule, not depends, of_one and _searched(op, on, of_one))


def resolve(op: str, on: type[Operand], call: Call | None) -> tuple[Callable[..., Any], bool] | None:
    """Return the rule for a call, and whether it is a kind's rule, which takes the call itself."""
    kind = None if call is None or not call.operation.declared else call.operation.kind_of(call)
    key = op, on, kind
    if is_dynamo_compiling():  # see `order_of`
        return _searched(*key)
    found = _FOUND.get(key, _NEW)
    if found is _NEW:
        found = _FOUND[key] = _searched(*key)
    return found  # type: ignore[no-any-return]


def _searched(op: str, on: type[Operand], kind: Kind | None) -> tuple[Callable[..., Any], bool] | None:
    for each in order_of(on):
        function = _RULES.get((op, each))
        if function is not None and (kind is None or _ONLY.get((op, each), kind) is kind):
            return function, False
        if kind is not None:
            function = _RULES_OF_KINDS.get((kind.value, each))
            if function is None and kind is Kind.MOVES:
                function = _RULES_OF_KINDS.get((Kind.LINEAR.value, each))
            if function is not None:
                return function, True
    return None


def apply(call: Call) -> Any:
    """Apply the rule for a call, as if the operation had met its values on its own."""
    return apply_as(call, type(call.values[0]))


def apply_as(call: Call, on: type[Operand]) -> Any:
    """Apply a type's rule for a call to values that can have another type."""
    found = resolve(call.op, on, call)
    if found is None:
        raise MissingRule(f"no {on.__name__} rule for {call.op!r} at {where()}")
    function, takes_call = found
    return function(call) if takes_call else function(*call.args, **call.kwargs)


def apply_kind(call: Call, on: type[Operand] | None = None) -> Any:
    """Apply the rule of its kind to a call, not its operation's: by default for the type of its values."""
    on = on or type(call.values[0])
    for each in order_of(on):
        function = _RULES_OF_KINDS.get((call.kind.value, each))
        if function is not None:
            return function(call)
    raise MissingRule(f"no {on.__name__} rule for {call.op!r} at {where()}, nor one for *{call.kind}* operations")


def operation_named(name: str) -> Operation:
    """Return an operation's row, by any spelling; one unknown to the table counts as *mixing*."""
    found = _OPERATIONS.get(name)
    if found is None:
        op = spelled(name).op
        found = _OPERATIONS.get(op)
        return Operation(op, Kind.MIXING) if found is None else found
    return found


def kind_of(op: str, *args: Any, **kwargs: Any) -> Kind:
    """Return an operation's kind of map for these arguments, some of which are values."""
    return operation_named(op).kind_of(Call(operation_named(op), args, kwargs))


def made(function: Callable[..., Any]) -> None:
    """Store a function that is an operation under its own name."""
    _MADE[function.__name__] = function


def made_function(op: str) -> Callable[..., Any] | None:
    """Return the function stored as the operation of this name."""
    return _MADE.get(op)


def table() -> list[Rule]:
    """Return every row, with its own rule or served by a kind, sorted by operation and type."""
    written = [Rule(op, on, function) for (op, on), function in _RULES.items()]
    served = [Rule(op, on, function) for (op, on), function in _DOCUMENTS.items() if (op, on) not in _RULES]
    return sorted([*written, *served], key=lambda row: (row.op, row.on.__name__))


def operations() -> list[Operation]:
    """Return every operation that the table knows, sorted by name."""
    return [_OPERATIONS[op] for op in sorted(_OPERATIONS)]


def _first_sentence(text: str) -> str:
    return " ".join(re.split(r"(?<=[.:])\s", text.strip(), maxsplit=1)[0].split()).rstrip(".:")
