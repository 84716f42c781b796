"""Patches dynamo so that compiled values behave as in eager.

Dynamo silently passes `value @ tensor` to `__torch_function__` with the arguments swapped, and silently compiles
`value += tensor` to an addition that leaves the value unchanged. It refuses `value @ value` and
`torch.cat((value, tensor))`. The patches make it call the value's own method, as Python does, and search tuples for
values, as it does lists.

Nothing here imports dynamo, which takes seconds: the patches wait until someone else does.
"""

import contextlib
import importlib.abc
import importlib.util
import operator
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

import torch

from momentprop.torch_compat.guard import known, patched

F = TypeVar("F", bound=Callable[..., Any])

_LOSES = (
    "in compiled code, write `torch.matmul(value, tensor)` for `value @ tensor`, `value = value + tensor` for "
    "`value += tensor`, and lists of values for tuples"
)
_METHODS = {
    getattr(operator, prefix + name): f"__{prefix}{name}__"
    for name in ("add", "sub", "mul", "truediv", "pow", "matmul")
    for prefix in ("", "i")
} | {operator.imatmul: "__matmul__"}  # tensors have no `__imatmul__`

_kinds: list[type[Any]] = []  # the bases of all values


def install(kind: type[Any]) -> None:
    """Patch dynamo for values of this type, now or on its import."""
    _kinds.append(kind)
    for name in _REPAIRS:
        if name in sys.modules:
            _repair(name, sys.modules[name])
    sys.meta_path.insert(0, _AfterImport([name for name in _REPAIRS if name not in sys.modules]))


_callback = known(
    "torch._C._dynamo.eval_frame.get_eval_frame_callback",
    otherwise=lambda: None,
    loses="following correlations inside a compiled function fails with an error of dynamo, not of momentprop",
)


def is_compiled() -> bool:
    """Return whether a compiled function is being traced or run, including parts that dynamo left as they are."""
    return torch.compiler.is_compiling() or callable(_callback())


def eagerly() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which compiled code runs as written, without compilation."""
    if "torch._dynamo" not in sys.modules:  # so nothing has been compiled
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]


def constant(function: F) -> F:
    """Make dynamo run a function once, while it traces, as `torch.compiler.assume_constant_result` does.

    That function imports dynamo; this one does not.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def traceable(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an equivalent function of torch where dynamo does not trace this one inside a mode.

    `torch.Tensor.unflatten` calls the method of its superclass, which dynamo does not trace there.
    """
    return torch.unflatten if name == "unflatten" else function


def _call_methods(module: ModuleType) -> None:
    """Make operators on a value call its methods."""
    builtin = module.BuiltinVariable
    insert = builtin._handle_insert_op_in_graph
    operators = builtin._binops()
    instance = module.UserDefinedObjectVariable

    def handle(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        method = _METHODS.get(self.fn)
        if method is not None and len(args) == 2 and not kwargs and is_value(args[0]):
            return args[0].call_method(tx, method, [args[1]], {})
        return insert(self, tx, args, kwargs)

    def is_value(argument: Any) -> bool:
        return isinstance(argument, instance) and issubclass(argument.python_type(), tuple(_kinds))

    operators[operator.matmul] = (["__matmul__", "__rmatmul__", "__matmul__"], operator.imatmul)
    builtin._handle_insert_op_in_graph = handle


def _look_into_tuples(module: ModuleType) -> None:
    """Make the search for values among a function's arguments enter tuples."""
    flatten, kind = module._flatten_vts, module.TupleVariable

    def flatten_with_tuples(arguments: Any) -> list[Any]:
        found: list[Any] = []
        for argument in flatten(arguments):
            inside = argument.is_realized() and isinstance(argument, kind)
            found += flatten_with_tuples(argument.items) if inside else [argument]
        return found

    module._flatten_vts = flatten_with_tuples  # type: ignore[attr-defined]


_REPAIRS: dict[str, Callable[[ModuleType], None]] = {
    "torch._dynamo.variables.builtin": _call_methods,
    "torch._dynamo.variables.torch_function": _look_into_tuples,
}


def _repair(name: str, module: ModuleType) -> None:
    patched(name, lambda: _REPAIRS[name](module), loses=_LOSES)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds modules as the other finders do, and patches them once they are loaded."""

    def __init__(self, names: Sequence[str]) -> None:
        self.awaited = set(names)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.awaited:
            return None
        self.awaited.remove(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_repair(module: ModuleType) -> None:
                load(module)
                _repair(name, module)

            spec.loader.exec_module = load_and_repair  # type: ignore[method-assign]
        return spec
