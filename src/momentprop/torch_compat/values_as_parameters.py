"""Values in place of parameters: `functional_call` accepts them, and the error of an assignment says what to write.

Torch checks that whatever replaces a parameter is a tensor, in a function that nothing public replaces. Its error on
`layer.weight = value` names only the value's type.
"""

from typing import Any

import torch
from torch import nn

from momentprop.torch_compat.guard import patched


def install(kind: type[Any]) -> None:
    """Let values of a kind replace parameters for a call."""
    patched(
        "torch.nn.utils._named_member_accessor.swap_tensor",
        lambda: _let_values_be_swapped(kind),
        loses="`torch.func.functional_call` takes no values: use `momentprop.with_weights` instead",
    )
    patched(
        "torch.typename",
        lambda: _name_values(kind),
        loses="the error for assigning a value to a parameter does not say what to write instead",
    )


def _let_values_be_swapped(kind: type[Any]) -> None:
    accessor = torch.nn.utils._named_member_accessor
    original = accessor.swap_tensor

    def swap_tensor(module: nn.Module, name: str, tensor: Any, allow_missing: bool = False) -> Any:
        held = vars(module).get("_parameters", {})
        if isinstance(tensor, kind) and name in held:
            found, held[name] = held[name], tensor
            return found
        return original(module, name, tensor, allow_missing)

    accessor.swap_tensor = swap_tensor


def _name_values(kind: type[Any]) -> None:
    original = torch.typename

    def typename(obj: Any, /) -> str:
        name = original(obj)
        if not isinstance(obj, kind):
            return name
        return f"{name}, a random value; write `model = momentprop.with_weights(model, {{name: value}})`,"

    torch.typename = typename
