"""Where `torch.compile` treats a value otherwise than eager torch does, repaired.

Dynamo hands `value @ tensor` to `__torch_function__` with the arguments exchanged, and `value += tensor` as an addition
that leaves the value as it was, both without a word; `value @ value` and `torch.cat((value, tensor))` it refuses. Here
it is made to call the value's own method, as Python does, and to look for values in tuples, as it does in lists.

Importing this module does not import dynamo, which takes seconds, but waits for it.
"""

import importlib.abc
import importlib.util
import operator
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from momentprop.dispatch import Operand

_METHODS = {
    getattr(operator, prefix + name): f"__{prefix}{name}__"
    for name in ("add", "sub", "mul", "truediv", "pow", "matmul")
    for prefix in ("", "i")
} | {operator.imatmul: "__matmul__"}  # tensors have no other


def _call_methods(module: ModuleType) -> None:
    """Make operators on a value call its methods."""
    builtin = module.BuiltinVariable
    insert = builtin._handle_insert_op_in_graph

    def handle(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        method = _METHODS.get(self.fn)
        if method is not None and len(args) == 2 and not kwargs and _is_value(args[0]):
            return args[0].call_method(tx, method, [args[1]], {})
        return insert(self, tx, args, kwargs)

    builtin._binops()[operator.matmul] = (["__matmul__", "__rmatmul__", "__matmul__"], operator.imatmul)
    builtin._handle_insert_op_in_graph = handle


def _is_value(argument: Any) -> bool:
    """Whether dynamo's record of an argument stands for a value."""
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    return isinstance(argument, UserDefinedObjectVariable) and issubclass(argument.python_type(), Operand)


def _look_into_tuples(module: ModuleType) -> None:
    """Make the search for values among the arguments of a function enter tuples."""
    flatten = module._flatten_vts

    def flatten_with_tuples(arguments: Any) -> list[Any]:
        found: list[Any] = []
        for argument in flatten(arguments):
            inside = argument.is_realized() and isinstance(argument, module.TupleVariable)
            found += flatten_with_tuples(argument.items) if inside else [argument]
        return found

    module._flatten_vts = flatten_with_tuples  # type: ignore[attr-defined]


_REPAIRS: dict[str, Callable[[ModuleType], None]] = {
    "torch._dynamo.variables.builtin": _call_methods,
    "torch._dynamo.variables.torch_function": _look_into_tuples,
}


def _repair(name: str, module: ModuleType) -> None:
    try:
        _REPAIRS[name](module)
    except (AttributeError, TypeError):
        warnings.warn(
            f"momentprop does not know `{name}` of this torch. Compiled, write `torch.matmul(value, tensor)` for "
            "`value @ tensor`, `value = value + tensor` for `value += tensor`, and lists of values for tuples",
            stacklevel=2,
        )


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules as the other finders do, and repairs them once they are loaded."""

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


for _name in _REPAIRS:
    if _name in sys.modules:
        _repair(_name, sys.modules[_name])
sys.meta_path.insert(0, _AfterImport([name for name in _REPAIRS if name not in sys.modules]))
