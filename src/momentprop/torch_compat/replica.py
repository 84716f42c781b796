"""A replica of a model: the same tensors in new modules.

A pass runs on a replica. The training flags that it sets, the hooks that it adds and what the model assigns to its
attributes stay with the replica. So threads can share a model, and an interrupted pass leaves nothing behind. A module
keeps its children, parameters, buffers and hooks in private dictionaries, and a replica needs its own.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from momentprop.torch_compat.guard import warn
from momentprop.torch_compat.modules import are_plain, every_module, own_attributes

Hooks = Iterable[tuple[nn.Module, Callable[..., Any]]]
"""Modules and their hooks."""

_DICTIONARIES = ("_parameters", "_buffers", "_modules")
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)
_HOLDERS = {types.MethodType, functools.partial, list, tuple, dict}  # what can lead to a module
_SCALARS = {type(None), bool, int, float, str}
_OPAQUE = ("torch.distributed", "torch.nn.parallel", "torch.jit", "torch._dynamo", "torch.nn.modules.lazy")

_BARE = vars(nn.Module())
_UNKNOWN = [name for name in (*_DICTIONARIES, *_HOOKS) if name not in _BARE]
if _UNKNOWN:
    warn(f"torch.nn.Module.{_UNKNOWN[0]}", "a pass runs on the model itself, so that threads may not share a model")


class Replica:
    """A model of new modules with the old ones' tensors, for one pass.

    A module is reached by attributes, lists, tuples, dictionaries, bound methods and `functools.partial`. The replica
    shares *opaque* modules, because their code refers to the module itself: scripted, compiled, distributed and lazy
    ones, and those whose `forward` was replaced by a function. A `light` replica also shares torch's modules, whose
    code assigns nothing to them: it is for a pass that changes no flags, hooks, parameters or buffers.
    """

    def __init__(self, model: Callable[..., Any], light: bool = False) -> None:
        self.light = light
        self.new: dict[int, nn.Module] = {}  # by the old module's identity, including shared ones
        self.pairs: list[tuple[nn.Module, nn.Module]] = []  # old and new modules
        self.values: list[tuple[Any, Any]] = []  # random weights of the model, and their stand-ins in the pass
        self.model: Callable[..., Any] = self._copied(model)

    @property
    def module(self) -> nn.Module:
        """The replica of a model that is a module."""
        assert isinstance(self.model, nn.Module)
        return self.model

    @property
    def modules(self) -> Iterable[nn.Module]:
        """The modules of the replica, including shared ones."""
        return self.new.values()

    @property
    def shared(self) -> list[nn.Module]:
        """The modules of the original model that the replica shares."""
        return [module for key, module in self.new.items() if key == id(module)]

    @contextlib.contextmanager
    def hooked(self, after: Hooks, before: Hooks = ()) -> Iterator[None]:
        """Add hooks to modules of the replica, to run before or after their forward pass."""
        shared, handles = set(self.shared), []
        try:
            for module, hook in before:
                handles.append(_own_hooks(module, module in shared).register_forward_pre_hook(hook))
            for module, hook in after:
                handles.append(_own_hooks(module, module in shared).register_forward_hook(hook))
            yield
        finally:
            for handle in handles:  # for shared modules
                handle.remove()

    def own_buffers(self, but: Callable[[nn.Module], bool] = lambda _: False) -> None:
        """Give the modules their own buffers, with exceptions, so that writes to them are lost."""
        for _, new in self.pairs:
            if not but(new):
                buffers = vars(new)["_buffers"]
                buffers.update({name: tensor.clone() for name, tensor in buffers.items() if tensor is not None})

    def detach_parameters(self) -> None:
        """Give the modules parameters without gradients, in the same memory; shared parameters stay shared."""
        made: dict[int, torch.Tensor] = {}

        def detached(x: Any) -> Any:
            return made.setdefault(id(x), x.detach()) if isinstance(x, nn.Parameter) and x.requires_grad else x

        for _, new in self.pairs:
            state = vars(new)
            state["_parameters"].update({name: detached(x) for name, x in state["_parameters"].items()})
            for name, value in state.items():  # such as the flat weights of a recurrent layer
                if type(value) is list and any(isinstance(x, nn.Parameter) for x in value):
                    state[name] = [detached(x) for x in value]

    def carry_back(self, keeps: Callable[[Any], bool]) -> None:
        """Assign to old modules in training what the new ones assigned to themselves, where `keeps` allows it."""
        for old, new in self.pairs:
            if old.training:
                for was, now in ((vars(old), vars(new)), (vars(old)["_buffers"], vars(new)["_buffers"])):
                    for name, value in now.items():
                        if value is not was.get(name, _BARE) and name not in _BARE and keeps(value):
                            was[name] = value

    def _copied(self, x: Any) -> Any:
        if isinstance(x, nn.Module):
            return self.new.get(id(x)) or self._module(x)
        if isinstance(x, list | tuple):
            return x if _SCALARS.issuperset(map(type, x)) else self._sequence(x)
        if isinstance(x, dict):
            copies = self._sequence(list(x.values()))
            return x if all(map(_same, copies, x.values())) else dict(zip(x, copies, strict=True))
        if isinstance(x, types.MethodType):
            owner = self._copied(x.__self__)
            return x if owner is x.__self__ else types.MethodType(x.__func__, owner)
        if isinstance(x, functools.partial):
            return functools.partial(self._copied(x.func), *self._copied(x.args), **self._copied(x.keywords))
        return x

    def _sequence(self, x: Any) -> Any:
        copies = [self._copied(item) for item in x]
        return x if all(map(_same, copies, x)) else type(x)(copies)

    def _module(self, module: nn.Module) -> nn.Module:
        state = vars(module)
        if _UNKNOWN or torch.compiler.is_compiling() or _is_opaque(type(module), state):
            self.new.update((id(part), part) for part in module.modules())
            return module
        if self.light and are_plain([module]) and are_plain(inside := every_module(module)):
            self.new.update(zip(map(id, inside), inside, strict=True))
            return module
        new: nn.Module = object.__new__(type(module))
        self.new[id(module)] = new
        self.pairs.append((module, new))
        state = state.copy()
        object.__setattr__(new, "__dict__", state)  # not by the modules' own method, which looks for parameters
        for name in _DICTIONARIES:
            state[name] = state[name].copy()
        children = state["_modules"]
        for name, child in children.items():
            children[name] = self._copied(child)
        for name, value in own_attributes(module).items():
            if type(value) in _HOLDERS and value:
                state[name] = self._copied(value)
        return new


def _own_hooks(module: nn.Module, shared: bool) -> nn.Module:
    """Give a replica's module its own dictionaries of hooks, before one is added."""
    if not shared:
        vars(module).update((name, vars(module)[name].copy()) for name in _HOOKS)
    return module


def _same(a: Any, b: Any) -> bool:
    return a is b


def _is_opaque(kind: Any, state: dict[str, Any]) -> bool:
    compiled = state.get("_compiled_call_impl") is not None
    return compiled or isinstance(state.get("forward"), types.FunctionType) or _is_opaque_class(kind)


@functools.lru_cache(maxsize=4096)
def _is_opaque_class(kind: Any) -> bool:
    return any(base.__module__.startswith(_OPAQUE) for base in kind.__mro__)
