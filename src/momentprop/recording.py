"""The values at the modules of a model, recorded while it runs."""

import contextlib
import difflib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.values import Statistics, Value
from momentprop.values.conversion import as_values
from momentprop.values.structures import mapped


class Recording(contextlib.AbstractContextManager["Recording"]):
    """Keeps what `keep` makes of the value at every module, or at the modules named; by default a copy."""

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
        self.modules = _recorded_modules(model, record)
        self.handles: list[Any] = []

    def __enter__(self) -> "Recording":
        self.handles = [module.register_forward_hook(self._hook(path)) for path, module in self.modules.items()]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def start(self) -> None:
        """Begin a new forward pass."""
        self.values = {}

    def _hook(self, path: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Statistics) and not issubclass(self.kind, Statistics):
                return  # a pass of one pixel, for the sake of an `AnalyticNorm`
            calls = sum(key.split("#")[0] == path for key in self.values)
            key = f"{path}#{calls + 1}" if calls else path
            self.values[key] = self.keep(key, as_values(output, self.kind))

        return keep


def _copies(path: str, tree: Any) -> Any:
    return mapped(_copied, tree)


def _copied(x: Any) -> Any:
    if isinstance(x, Value):
        return x.each(torch.clone)
    return x.clone() if isinstance(x, Tensor) else x


def _recorded_modules(model: Callable[..., Any], record: bool | Sequence[str]) -> dict[str, nn.Module]:
    if record is False:
        return {}
    if not isinstance(model, nn.Module):
        raise TypeError(f"record needs a module to look into, but the model is a {type(model).__name__}")
    modules = {path: module for path, module in model.named_modules() if path}
    if record is True:
        return modules
    every = dict(model.named_modules(remove_duplicate=False))
    for path in record:
        if path not in every:
            near = difflib.get_close_matches(path, every, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"the model has no module {path!r} to record{hint}")
    return {path: every[path] for path in record}
