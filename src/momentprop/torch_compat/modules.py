"""Private parts of `nn.Module`: common bases of layers, a module's hooks, and how it moves.

Torch's norms, batch norms and dropouts each share a private base, from which layers of other libraries also derive.
Anyone can add a hook, but only its handle can remove it, and a module's copy lacks the handle. `to`, `cuda`
and `double` all end in `_apply`, where a layer can move tensors that are neither parameters nor buffers.
"""

import functools
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from momentprop.torch_compat.guard import known, warn

if TYPE_CHECKING:
    from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
    from torch.nn.modules.dropout import _DropoutNd

    BatchNorm = _BatchNorm
    RunningNorm = _NormBase
    Dropout = _DropoutNd
else:
    _BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    RunningNorm = known(
        "torch.nn.modules.batchnorm._NormBase",
        otherwise=(*_BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        loses="only torch's own batch and instance norms are recognized, and layers derived from them",
    )
    BatchNorm = known(
        "torch.nn.modules.batchnorm._BatchNorm",
        otherwise=_BATCH_NORMS,
        loses="only torch's own batch norms are recognized, and layers derived from them",
    )
    Dropout = known(
        "torch.nn.modules.dropout._DropoutNd",
        otherwise=(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
        loses="only torch's own dropouts are recognized, and layers derived from them",
    )

for _name in ("_forward_pre_hooks", "_forward_hooks"):
    if not hasattr(nn.Module(), _name):
        warn(f"torch.nn.Module.{_name}", "`momentprop.normalize` and `momentprop.fold` do not work")


def hooks_before(module: nn.Module) -> dict[int, Any]:
    """Return the hooks that run before a module's forward pass; deleting an entry removes a hook."""
    return getattr(module, "_forward_pre_hooks", {})


def hooks_after(module: nn.Module) -> dict[int, Any]:
    """Return the hooks that run after a module's forward pass; deleting an entry removes a hook."""
    return getattr(module, "_forward_hooks", {})


_BARE = frozenset(vars(nn.Module()))


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes beyond those that every module has."""
    state = vars(module)
    return {name: state[name] for name in state.keys() - _BARE}


def every_module(model: nn.Module) -> list[nn.Module]:
    """Return a module and all modules inside it, each once; torch's own iterator takes several times as long."""
    found, left = {id(model): model}, [model]
    while left:
        for child in vars(left.pop()).get("_modules", {}).values():
            if child is not None and id(child) not in found:
                found[id(child)] = child
                left.append(child)
    return list(found.values())


_LOSES = "many draws of a network take longer"
_GLOBAL_HOOKS = [
    known("torch.nn.modules.module._global_forward_hooks", otherwise={0: None}, loses=_LOSES),
    known("torch.nn.modules.module._global_forward_pre_hooks", otherwise={0: None}, loses=_LOSES),
]
_OWN_CODE = ("transformer", "lazy", "_functions")  # modules of torch that call functions passed to them


def are_of_torch(modules: Iterable[nn.Module]) -> bool:
    """Return whether all modules are torch's or this library's, and call no other code."""
    if any(_GLOBAL_HOOKS):
        return False
    for module in modules:
        kind: Any = type(module)
        ours, state = _origin(kind), vars(module)
        if not ours or state.get("_forward_pre_hooks") or state.get("_forward_hooks") or "forward" in state:
            return False
        if ours == "momentprop" and not all(map(_is_harmless, state.values())):
            return False
    return True


def are_plain(modules: Iterable[nn.Module]) -> bool:
    """Return whether all code of modules, except their children, is torch's, which assigns nothing to them."""
    for module in modules:
        kind: Any = type(module)
        state = vars(module)
        if _origin(kind) != "torch" or state.get("_forward_hooks") or state.get("_forward_pre_hooks"):
            return False
        if "forward" in state:
            return False
    return True


@functools.cache
def _origin(kind: Any) -> str:
    """Return whose a module class is, torch's or ours, or nothing."""
    package, _, rest = kind.__module__.partition(".nn.")
    name = rest.removeprefix("modules.")
    known_code = package == "momentprop" or (package == "torch" and rest != name and name not in _OWN_CODE)
    return package if known_code else ""


def _is_harmless(attribute: Any) -> bool:
    """Return whether an attribute of one of our modules, such as its noise, is not user code."""
    code = attribute if isinstance(attribute, types.FunctionType | types.MethodType | type) else type(attribute)
    return code.__module__.partition(".")[0] in ("builtins", "collections", "torch", "momentprop")


_apply = known(
    "torch.nn.Module._apply",
    otherwise=None,
    loses="the noise of a layer stays where it is when the layer moves to another device or type",
)


class Moving(nn.Module):
    """A module that gets a call when it moves to another device or type."""

    def moved(self, move: Callable[[Tensor], Tensor]) -> None:
        """Move the tensors that are neither parameters nor buffers; `move` converts one tensor."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        _apply(self, fn, recurse)
        self.moved(fn)
        return self
