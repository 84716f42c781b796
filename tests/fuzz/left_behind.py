"""What a call may leave behind: the state of a model, of torch and of the interpreter, before and after it."""

import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


def state(model: nn.Module) -> dict[str, Any]:
    """Return everything that a call must leave as it was; tensors by their identity and a copy of their content."""
    found: dict[str, Any] = {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "torch function modes": modes(),
        "torch dispatch modes": torch._C._len_torch_dispatch_stack(),
        "torch functions enabled": torch._C._is_torch_function_enabled(),
        "transforms": torch._C._functorch.peek_interpreter_stack() is not None,
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "torch's generator": torch.get_rng_state(),
        "Python's generator": random.getstate(),
        "numpy's generator": str(np.random.get_state()),  # noqa: NPY002  # the global one is what others use
        "warning filters": list(warnings.filters),
    }
    for path, module in model.named_modules():
        found[f"{path}: training"] = module.training
        found[f"{path}: names"] = sorted(vars(module))
        for name in _HOOKS:
            found[f"{path}: {name}"] = list(getattr(module, name, {}).items())
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            found[f"{path}.{name}"] = _described(tensor)
    return found


def modes() -> list[Any]:
    """Return the active `TorchFunctionMode`s, the innermost last."""
    return [torch._C._get_function_stack_at(level) for level in range(torch._C._len_torch_function_stack())]


def _described(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        return tensor
    return id(tensor), tensor.requires_grad, tensor.grad is None, tensor.detach().clone()


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of what has changed."""
    names = [name for name in before if name not in after or not _same(before[name], after[name])]
    return names + [name for name in after if name not in before]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return all(map(_same, a, b))
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    return bool(a == b)
