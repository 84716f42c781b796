"""The one way in: an operation meets a value, finds its rule, and returns the rule's result.

Functions reach `dispatch` through `__torch_function__` of the running mode or of the value; methods and operators
through `enter`, which takes the same path. While a rule runs, the mode is inactive: what the rule computes is its own.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function

from momentprop.dispatch.call import Call
from momentprop.dispatch.context import Context, current
from momentprop.dispatch.dependence import warn_if_related
from momentprop.dispatch.kinds import Kind
from momentprop.dispatch.memory import as_before
from momentprop.dispatch.natives import WORDS, in_our_words
from momentprop.dispatch.operand import Operand, values_in
from momentprop.dispatch.place import where
from momentprop.dispatch.rule_table import MET, made, met, operation_named, resolve
from momentprop.dispatch.spelling import spelled
from momentprop.torch_compat.lost_gradients import refuse_lost_gradients
from momentprop.torch_compat.modes import bare, is_entered

F = TypeVar("F", bound=Callable[..., Any])
_WHERE = torch.Tensor.where


def enter(
    method: Callable[..., Any], of_tensor: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a value's `method` that stands for a tensor method, on the path that torch's functions take.

    Active modes get the value's method, which they can call, not the tensor's.
    """
    if not is_entered():
        return dispatch(of_tensor, args, kwargs)
    if torch.compiler.is_compiling():
        return dispatch(of_tensor, args, kwargs, current())
    return handle_torch_function(method, args[:1], *args, **kwargs)


def operation(function: F) -> F:
    """Turn a Python function of tensors into an operation that can have rules, under the function's own name.

    On plain tensors it stays unchanged; with a value among its arguments it asks the rule table.

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

    made(function)

    @functools.wraps(function)
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        if is_entered() and not torch.compiler.is_compiling():
            return handle_torch_function(dispatched, args, *args, **kwargs)
        values, context = values_in(args, kwargs), current()
        if context is not None:
            return context.run(dispatched, function, args, kwargs, values)
        return dispatch(dispatched, args, kwargs, values=values) if values else function(*args, **kwargs)

    return dispatched  # type: ignore[return-value]


def dispatch(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    context: Context | None = None,
    values: Sequence[Operand] | None = None,
) -> Any:
    """Apply the rule for a torch `function` to arguments that include at least one value.

    `values` are the values among the arguments, if the caller has found them. Without a rule, it asks the fallback of
    the running `context`, if there is one.
    """
    if function is _WHERE:  # a tensor's own method takes the condition second
        given = {**dict(zip(("input", "condition", "other"), args, strict=False)), **kwargs}
        function, args, kwargs = torch.where, [given[name] for name in ("condition", "input", "other")], {}
    if "out" in kwargs:
        return _into(kwargs["out"], function, args, {key: kwargs[key] for key in kwargs if key != "out"}, context)
    if values is None:
        values = values_in(args, kwargs)
    name = getattr(function, "__name__", "")  # scripted methods have none
    on = type(values[0]) if len(values) == 1 else _type_of(name, values)
    row = None if is_dynamo_compiling() else MET.get((name, on))  # see `order_of`
    op, reflected, in_place, operation, found, always, of_one = row or met(name, on)
    if on.takes:
        args, kwargs, values = _of_one_type(on, op, args, kwargs, values, in_place)
    if not torch.is_grad_enabled():
        for value in values:
            if value.requires_grad:
                refuse_lost_gradients(values, where)
                break
    watched = context is not None and context.watcher is not None
    if found is None and not on.needs_rules and not watched:
        return on.without_rule(function, args, kwargs)
    ordered, named = args, kwargs
    if op in WORDS or (kwargs and type(function) is not FunctionType):  # torch's names can differ from the rules'
        ordered, named = in_our_words(function, operation, args, kwargs)
    if reflected:
        ordered, values = ordered[::-1], values[::-1]
    call = Call(operation, ordered, named, values)
    if not always:
        found = of_one if of_one is not None and len(values) == 1 else resolve(op, on, call)
    if found is None:
        return _without_rule(call, function, args, kwargs, on, context)
    if in_place or (operation.inplace is not None and call.in_place):
        return _write_back(call, found, context)
    return _watched(call, found, context) if watched else _applied(call, *found)


def _into(
    out: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Context | None
) -> Any:
    """Apply an operation and write its result into the argument `out`."""
    values = values_in(args, kwargs)
    result = dispatch(function, args, kwargs, context, values) if values else function(*args, **kwargs)
    if out is None:
        return result
    if not isinstance(out, Operand) and isinstance(result, Operand):
        raise _into_plain(getattr(function, "__name__", ""))
    if out.shape != result.shape:
        shapes = f"a result of shape {tuple(result.shape)} does not fit `out` of {tuple(out.shape)}"
        raise RuntimeError(f"{function.__name__!r} at {where()}: {shapes}")
    return dispatch(torch.Tensor.copy_, (out, result), {}, context) if isinstance(out, Operand) else out.copy_(result)


def _into_plain(
    op: str,
) -> RuntimeError:  # not a TypeError: on that, Python tries `tensor + value` and rebinds the name
    return RuntimeError(
        f"in-place {op!r} at {where()} would write a random value into a plain tensor: use the out-of-place operation, "
        "make the tensor a value first, or run the model with `momentprop.propagate` and without `torch.compile`"
    )


def _type_of(name: str, values: Sequence[Operand]) -> type[Operand]:
    """Return the type of all values, or the one among them that takes in the others."""
    assert values, f"{name!r} was dispatched without a value"
    first = type(values[0])
    for value in values:
        if type(value) is not first:
            for each in values:
                if all(type(other) in (type(each), *each.takes) for other in values):
                    return type(each)
            raise _different(spelled(name).op, first, type(value))
    return first


def _different(op: str, one: type[Operand], other: type[Operand]) -> TypeError:
    return TypeError(
        f"{op!r} was given a {one.__name__} and a {other.__name__} at {where()}: "
        "the values of one operation must be of one type, so convert one, or run the model with `method='ap2'`"
    )


def _of_one_type(
    on: type[Operand], op: str, args: Sequence[Any], kwargs: Mapping[str, Any], values: Sequence[Any], in_place: bool
) -> tuple[Sequence[Any], Mapping[str, Any], Sequence[Any]]:
    """Return the arguments with all values converted to the type that takes in the others."""
    if all(type(value) is on for value in values):
        return args, kwargs, values
    if in_place and args and isinstance(args[0], Operand) and type(args[0]) is not on:
        raise _different(op, type(args[0]), on)
    values = [value if type(value) is on else on.taken_in(value) for value in values]
    return *Call(operation_named(op), args, kwargs).filled(values), values


def _without_rule(
    call: Call,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    on: type[Operand],
    context: Context | None,
) -> Any:
    if on.needs_rules:
        context = context or current()
        if context is not None and context.fallback is not None:
            with bare():  # it works on plain tensors and can draw random numbers
                result = context.fallback(on, function, args, kwargs)
            followed = context.watcher is not None and context.watcher.needs_graph
            return context.watcher.after(call, result) if followed else result  # type: ignore[union-attr]
    result = on.without_rule(function, args, kwargs)
    watcher = None if context is None else context.watcher
    return result if watcher is None else watcher.after(call, result)


def _run(call: Call, found: tuple[Callable[..., Any], bool], context: Context | None) -> Any:
    """Run a rule and show its result to the watcher, if there is one."""
    if context is None or context.watcher is None:
        return _applied(call, *found)
    return _watched(call, found, context)


def _watched(call: Call, found: tuple[Callable[..., Any], bool], context: Any) -> Any:
    """Run a rule and show its result to the watcher, which sees nothing inside the rule."""
    watcher = context.watcher
    if watcher.enters_composites and call.kind is Kind.COMPOSITE:
        with context:  # the watcher sees the operations inside
            return watcher.around(call, lambda: _applied(call, *found))
    if watcher.needs_graph:
        call = watcher.before(call)
    context.watcher = None
    try:
        if watcher.needs_graph and not torch.is_grad_enabled():
            with torch.enable_grad():
                return watcher.after(call, _applied(call, *found))
        result = _applied(call, *found)
    finally:
        context.watcher = watcher
    return watcher.after(call, result)


def _applied(call: Call, function: Callable[..., Any], takes_call: bool) -> Any:
    """Run a rule; its errors name the rule and the place."""
    if is_dynamo_compiling():
        return _called(call, function, takes_call)
    try:
        if call.operation.views or len(call.values) > 1:
            return _called(call, function, takes_call)
        return function(call) if takes_call else function(*call.args, **call.kwargs)
    except Exception as error:
        on = type(call.values[0]).__name__
        error.add_note(f"in the {on} rule for {call.op!r} at {where()}")
        raise


def _called(call: Call, function: Callable[..., Any], takes_call: bool) -> Any:
    values, operation = call.values, call.operation
    if len(values) > 1 and operation.kind is Kind.MIXING and not (operation.joint or values[0].follows):
        warn_if_related(call)
    if not operation.views:
        return function(call) if takes_call else function(*call.args, **call.kwargs)
    base = values[0]
    first, memory = base.memory is None, base.share()
    result = function(call) if takes_call else function(*call.args, **call.kwargs)
    if not isinstance(result, Operand):
        for value in result if isinstance(result, tuple) else ():
            if isinstance(value, Operand):
                value.memory = memory  # type: ignore[misc]
        return result
    if result.leading is base.leading:  # such as `contiguous` of a contiguous value
        if first:
            base.memory = None
        return base
    result.memory = memory  # type: ignore[misc]
    return result


def _write_back(call: Call, found: tuple[Callable[..., Any], bool], context: Context | None) -> Any:
    """Run a pure rule for an in-place operation and put its result back into the first argument.

    Components that share memory with another value (a view was taken) are overwritten, as in torch; the rule then works
    on a copy, so that autograd's saved tensors stay intact. Other components are simply replaced. An operation that
    makes a view, such as `t_`, changes the shape of the value itself; other views of it stay.
    """
    target = call.args[0] if call.args else call.values[0]
    if not isinstance(target, Operand):
        if call.operation.views:  # a value that only gives a shape, as in `resize_as_`
            args, kwargs = call.filled([value.parts[0] for value in call.values])
            return getattr(target, f"{call.op}_")(*args[1:], **kwargs)
        raise _into_plain(call.op)
    if call.operation.views:
        result = _run(call, found, context)
        target.replace(result.parts, result.origin)
        target.elements, target.aside = result.elements, result.aside  # type: ignore[misc]
        return target
    if target.memory:
        copy = target.copied()
        call = call.of(*(copy if value is target else value for value in call.values))
    result = _run(call, found, context)
    if not isinstance(result, Operand):
        raise RuntimeError(f"in-place {call.op!r} at {where()} gives no random value: use the out-of-place operation")
    own, new = target.parts, result.parts
    if own[0].shape != new[0].shape:
        shapes = f"a result of shape {tuple(new[0].shape)} does not fit a value of {tuple(own[0].shape)}"
        raise RuntimeError(f"in-place {call.op!r} at {where()}: {shapes}")
    if target.memory:
        target.memory[0] += 1
        if target.aside != result.aside:
            raise RuntimeError(
                f"in-place {call.op!r} at {where()} would change the sources of noise of a value that has views; use "
                "the out-of-place operation"
            )
        for old, part in zip(own, new, strict=True):
            old.copy_(part)
    else:
        target.replace(as_before(own[0], new), result.origin)
        target.elements, target.aside = result.elements, result.aside  # type: ignore[misc]
    return target
