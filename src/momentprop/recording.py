"""The values at the modules of a model, recorded while it runs."""

import contextlib
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from momentprop.torch_compat.modes import bare
from momentprop.torch_compat.replica import Replica
from momentprop.values import Sample, Statistics, Value
from momentprop.values.conversion import as_values, copied
from momentprop.values.structures import mapped


class Recording:
    """Keeps what `keep` makes of the value at every module, or at the named modules; by default a copy."""

    def __init__(
        self,
        model: Callable[..., Any],
        kind: type[Value],
        record: bool | Sequence[str],
        keep: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self.kind = kind
        self.keep = keep or _copies
        self.values: dict[str, Any] = {}
        self.paths = _recorded_paths(model, record)

    def on(self, replica: Replica) -> contextlib.AbstractContextManager[None]:
        """Record what the modules of a replica return, while it runs inside this context."""
        if not self.paths:
            return contextlib.nullcontext()
        modules = dict(replica.module.named_modules(remove_duplicate=False))
        return replica.hooked([(modules[path], self._hook(path)) for path in self.paths])

    def start(self) -> None:
        """Begin a new forward pass."""
        self.values = {}

    def _hook(self, path: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Statistics) and not issubclass(self.kind, Statistics):
                return  # a pass of one pixel, for the sake of an `AnalyticNorm`
            calls = sum(bool(re.fullmatch(rf"{re.escape(path)}(#\d+)?", key)) for key in self.values)
            key = f"{path}#{calls + 1}" if calls else path
            values = as_values(output, self.kind)
            with bare() if self.kind is Sample else contextlib.nullcontext():  # keeping a value is not part of the pass
                self.values[key] = self.keep(key, values)

        return keep


def _copies(path: str, tree: Any) -> Any:
    return mapped(copied, tree)


def _recorded_paths(model: Callable[..., Any], record: bool | Sequence[str]) -> list[str]:
    if record is False:
        return []
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"`record` needs an `nn.Module`, but the model is a {type(model).__name__}: give a module, or leave out "
            "`record`"
        )
    if record is True:
        return [path for path, _ in model.named_modules() if path]
    every = dict(model.named_modules(remove_duplicate=False))
    for path in record:
        if path not in every:
            near = difflib.get_close_matches(path, every, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ": choose a name from `model.named_modules()`"
            raise ValueError(f"the model has no module {path!r} to record{hint}")
    return list(record)
