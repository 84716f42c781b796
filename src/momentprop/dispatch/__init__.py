r"""One table of rules, keyed by the operation's name and the value's type.

A torch operation that meets a value asks this table for the rule of (operation, type of the value), where the type is
looked up along its method resolution order. A rule is a pure function that takes torch's own arguments, with values in
place of tensors, and returns a value:

>>> import torch, momentprop
>>> @momentprop.rule("frac", on=momentprop.Normal)
... def frac(input):
...     '''Moments of the fractional part, taken here as if the integer part were certain.'''
...     return input.of(input.loc.frac(), input.variance)
>>> torch.frac(momentprop.Normal(torch.tensor([1.25]), 0.01)).loc
tensor([0.2500])
>>> momentprop.dispatch.forget("frac", on=momentprop.Normal)

One operation has many spellings (`torch.relu`, `F.relu`, `Tensor.relu_`, `x + y`, `x += y`, `1 - x`); all of them
reach the rule registered under the plain name. In-place spellings are served by the same pure rule: its result is put
back into the value (see `_write_back`).
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from momentprop.dispatch.context import Context, current
from momentprop.torch_compat.lost_gradients import refuse_lost_gradients
from momentprop.torch_compat.modes import bare
from momentprop.torch_compat.scripts import SCRIPTED

F = TypeVar("F", bound=Callable[..., Any])

_COMPARISONS = frozenset("eq ge greater greater_equal gt le less less_equal lt ne not_equal".split())


class MissingRule(NotImplementedError):  # noqa: N818 (a public name of the project)
    """There is no rule for this operation on this type of value."""


class Operand:
    """What rules act on: the base of `momentprop.values.Value`, with the little that dispatching needs of it."""

    components: ClassVar[tuple[str, ...]] = ()  # the names of its tensors
    needs_rules: ClassVar[bool] = True  # otherwise an operation without a rule acts as on a tensor
    refused: ClassVar[frozenset[str]] = frozenset()  # operations that have no rule, although a base type has one
    memory: ClassVar[list[int] | None] = None  # set on views and what they are views of: a shared count of writes
    origin: ClassVar[Any] = None  # set on an elementwise function of another value: see `values.origin`

    def each(self, function: Callable[[Tensor], Any]) -> Any:
        """Apply a function that moves or converts elements to every component."""
        raise NotImplementedError

    @classmethod
    def without_rule(cls, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What happens to an operation that has no rule for this type of value."""
        if isinstance(function, SCRIPTED):
            raise MissingRule(
                f"no {cls.__name__} rule can enter the scripted code at {where()}; "
                "use the module or function as it was before `torch.jit`"
            )
        if function.__name__.strip("_") in _COMPARISONS:
            raise MissingRule(
                f"the outcome of {function.__name__!r} on a random {cls.__name__} at {where()} is random, so that it "
                "can choose neither a branch nor elements; `torch.heaviside` gives its probability"
            )
        raise MissingRule(
            f"no {cls.__name__} rule for {function.__name__!r} at {where()}; "
            f"add one with `@momentprop.rule({function.__name__!r}, on=momentprop.{cls.__name__})`"
        )


class Rule(NamedTuple):
    """A row of the rule table: `function` serves `op` for values of type `on`."""

    op: str
    on: type[Operand]
    function: Callable[..., Any]

    @property
    def summary(self) -> str:
        """The first sentence of the rule's docstring."""
        return _first_sentence(inspect.getdoc(self.function) or "")

    @property
    def error(self) -> str:
        """What the docstring states after `Error:`, the rule's measured error or `exact`."""
        return self._field("Error")

    @property
    def source(self) -> str:
        """What the docstring states after `Source:`, where the formula comes from."""
        return self._field("Source")

    def _field(self, name: str) -> str:
        found = re.search(rf"^{name}: (.*?)(?:\n\n|\n\w+: |\Z)", inspect.getdoc(self.function) or "", re.M | re.S)
        return " ".join(found[1].split()).rstrip(".") if found else ""


class _Spelling(NamedTuple):
    op: str
    reflected: bool = False  # `2 - x` arrives as `x.__rsub__(2)`
    in_place: bool = False  # `x.relu_()`, `x += y`


_RULES: dict[tuple[str, type[Operand]], Callable[..., Any]] = {}
_SPELLINGS: dict[str, _Spelling] = {}
_INPLACE_POSITION: dict[Callable[..., Any], int] = {}  # where a rule takes torch's `inplace`
_NOWHERE = sys.maxsize
_SYNONYMS = {
    "_threshold": "threshold",  # what `torch.nn.functional.threshold` calls itself
    "absolute": "abs",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "special_erf": "erf",
    "special_exp2": "exp2",
    "special_expit": "sigmoid",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_log_softmax": "log_softmax",
    "special_logsumexp": "logsumexp",
    "special_ndtr": "ndtr",
    "special_softmax": "softmax",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "true_divide": "div",
    "truediv": "div",
}


def rule(*ops: str, on: type[Operand]) -> Callable[[F], F]:
    """Register the decorated function as the rule for `ops` on values of type `on` and of its subtypes.

    Declare torch's whole parameter list, with torch's names and defaults: eager torch hands over keywords where
    `torch.compile` hands over the caller's positions. `inplace` is declared and ignored; the dispatcher sees to it.
    """

    def register(function: F) -> F:
        parameters = list(inspect.signature(function).parameters)
        _INPLACE_POSITION[function] = parameters.index("inplace") if "inplace" in parameters else _NOWHERE
        for op in ops:
            _spell(op)
            _RULES[op, on] = function
        return function

    return register


def _spell(op: str) -> None:
    for name in (op, *(synonym for synonym, meant in _SYNONYMS.items() if meant == op)):
        _SPELLINGS.setdefault(name, _Spelling(op))
        _SPELLINGS.setdefault(f"{name}_", _Spelling(op, in_place=True))
        _SPELLINGS.setdefault(f"__{name}__", _Spelling(op))
        _SPELLINGS.setdefault(f"__r{name}__", _Spelling(op, reflected=True))
        _SPELLINGS.setdefault(f"__i{name}__", _Spelling(op, in_place=True))
    _SPELLINGS["__setitem__"] = _Spelling("setitem", in_place=True)
    _SPELLINGS["rsub"] = _Spelling("sub", reflected=True)


def operation(function: F) -> F:
    """Make a Python function of tensors an operation that rules can be given for, under the function's own name.

    On plain tensors it stays what it is; with a value among its arguments it asks the rule table.

    >>> import torch, momentprop
    >>> @momentprop.operation
    ... def swish(x):
    ...     return x * torch.sigmoid(x)
    >>> @momentprop.rule("swish", on=momentprop.Normal)
    ... def swish_moments(x):
    ...     return torch.nn.functional.silu(x)
    >>> swish(momentprop.Normal(torch.zeros(1), 1.0)).loc
    tensor([0.2066])
    >>> momentprop.dispatch.forget("swish", on=momentprop.Normal)
    """

    @functools.wraps(function)
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        context = current()
        if any(True for _ in values_in(args, kwargs)):
            return dispatch(dispatched, args, kwargs, context)
        return function(*args, **kwargs) if context is None else context.on_plain(dispatched, function, args, kwargs)

    return dispatched  # type: ignore[return-value]


def forget(op: str, *, on: type[Operand]) -> None:
    """Remove the rule for `op` on exactly the type `on`."""
    del _RULES[op, on]


def find(op: str, on: type[Operand]) -> Callable[..., Any] | None:
    """The rule for `op` on values of type `on`, or None."""
    if op in on.refused:
        return None
    for kind in on.__mro__:
        function = _RULES.get((op, kind))
        if function is not None:
            return function
    return None


def table() -> list[Rule]:
    """Every registered rule, sorted by operation and type."""
    return sorted(
        (Rule(op, on, function) for (op, on), function in _RULES.items()),
        key=lambda row: (row.op, row.on.__name__),
    )


def op_of(name: str) -> str:
    """The operation that a torch function of this name spells."""
    return _SPELLINGS.get(name, _Spelling(name)).op


def is_noise(name: str, on: type[Operand]) -> bool:
    """Whether a torch function of this name draws noise: only then it has a rule of its own on means, the type `on`."""
    return (op_of(name), on) in _RULES


def dispatch(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Context | None = None
) -> Any:
    """Apply the rule for a torch `function` to arguments of which at least one is a value.

    Without a rule, the fallback of the running `context` is asked, if there is one.
    """
    if not torch.is_grad_enabled():
        refuse_lost_gradients(values_in(args, kwargs), where)
    name = getattr(function, "__name__", "")  # scripted methods have none
    op, reflected, in_place = _SPELLINGS.get(name, (name, False, False))
    kind = _kind_of(op, args, kwargs)
    found = find(op, kind)
    if found is None:
        if kind.needs_rules and op not in kind.refused:
            context = context or current()
            if context is not None and context.fallback is not None:
                with bare():  # it works on plain tensors, and may draw random numbers
                    return context.fallback(kind, function, args, kwargs)
        result = kind.without_rule(function, args, kwargs)
        watcher = None if context is None else context.watcher
        return result if watcher is None else watcher.after(op, args, kwargs, result)
    if reflected:
        args = args[::-1]
    position = _INPLACE_POSITION[found]
    if in_place or kwargs.get("inplace", False) or (len(args) > position and args[position]):
        return _write_back(found, op, args, kwargs, context)
    return _watched(found, op, kind, args, kwargs, context)


def _watched(
    found: Callable[..., Any],
    op: str,
    kind: type[Operand],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    context: Context | None,
) -> Any:
    """Call a rule and show its result to the watcher, which sees nothing of what happens inside the rule."""
    if context is None or context.watcher is None:
        return _call(found, op, kind, args, kwargs)
    watcher, context.watcher = context.watcher, None
    try:
        result = _call(found, op, kind, args, kwargs)
    finally:
        context.watcher = watcher
    return watcher.after(op, args, kwargs, result)


def _call(
    found: Callable[..., Any], op: str, kind: type[Operand], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    if torch.compiler.is_compiling():
        return found(*args, **kwargs)
    try:
        return found(*args, **kwargs)
    except Exception as error:
        error.add_note(f"in the {kind.__name__} rule for {op!r} at {where()}")
        raise


def values_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Operand]:
    """The values among the arguments, also inside lists and tuples."""
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, Operand):
            yield argument
        elif isinstance(argument, list | tuple):
            for item in argument:
                if isinstance(item, Operand):
                    yield item


def _kind_of(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> type[Operand]:
    kind = None
    for value in values_in(args, kwargs):
        if kind is None:
            kind = type(value)
        elif kind is not type(value):
            raise TypeError(
                f"{op!r} was given a {kind.__name__} and a {type(value).__name__} at {where()}; "
                "the values of one operation must be of one type"
            )
    assert kind is not None, f"{op!r} was dispatched without a value"
    return kind


def _write_back(
    found: Callable[..., Any], op: str, args: Sequence[Any], kwargs: Mapping[str, Any], context: Context | None
) -> Any:
    """Run a pure rule for an in-place operation and put its result back into the first argument.

    Where the components share memory with another value (a view was taken) they are overwritten, as torch would do;
    the rule then works on a copy, so that what autograd saved stays as it was. Otherwise they are simply replaced.
    """
    target = args[0]
    if not isinstance(target, Operand):
        raise RuntimeError(  # not a TypeError: on that, Python tries `tensor + value` and rebinds the name
            f"in-place {op!r} at {where()} would write a random value into a plain tensor; "
            "use the out-of-place operation, or make the tensor a value first"
        )
    source = target.each(torch.clone) if target.memory else target
    result = _watched(found, op, type(target), (source, *args[1:]), kwargs, context)
    if target.memory:
        target.memory[0] += 1
        for name in target.components:
            getattr(target, name).copy_(getattr(result, name))
    else:
        for name in target.components:
            setattr(target, name, getattr(result, name))
        target.origin = result.origin  # type: ignore[misc]
    return target


def where() -> str:
    """The path of the running module, read from the live frames: costs nothing until an error needs it."""
    if torch.compiler.is_compiling():
        return "the place shown by the user stack"
    frame: FrameType | None = sys._getframe(1)
    modules: list[nn.Module] = []
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and not any(owner is module for module in modules):
            modules.append(owner)
        frame = frame.f_back
    if not modules:
        return "top level"
    inner, outer = modules[0], modules[-1]
    if inner is outer:
        return f"module {type(inner).__name__}"
    path = next((name for name, module in outer.named_modules() if module is inner), "?")
    return f"module {path!r} ({type(inner).__name__}) of {type(outer).__name__}"


def _first_sentence(text: str) -> str:
    return " ".join(re.split(r"(?<=[.:])\s", text.strip(), maxsplit=1)[0].split()).rstrip(".:")
