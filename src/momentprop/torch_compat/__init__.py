"""The only package that uses private or undocumented parts of torch, each behind a guard.

The rest of momentprop imports plain functions from here, never a private name of torch; `tests/torch_compat` enforces
that. If a version of torch lacks a name, `guard` warns once about what is lost, and everything else works.

| module | what it reads or repairs | why |
|---|---|---|
| `guard` | nothing | turns a missing name into one warning |
| `backward_hooks` | `BackwardHook` of `torch.utils.hooks` | torch never calls full backward hooks for values |
| `batching` | nothing | `vmap` is silently wrong for `roll` of a scalar and `index_fill` with a tensor |
| `dispatching` | `_python_dispatch`, `_get_dispatch_mode` | modes that see operations below autograd |
| `distributions` | `_validate_args`, `_inv` | torch cannot move a distribution or switch off its checks |
| `dynamo` | `BuiltinVariable`, `_flatten_vts` | compiled operators on values differ from eager ones |
| `export` | `torch.compiler._is_exporting_flag` | before torch 2.13 `is_exporting` is true in every compilation |
| `functorch` | `torch._C._functorch`, `forward_ad._current_level` | nothing public tells whether a transform runs |
| `lost_gradients` | the frame of `Function.apply` | an `autograd.Function` drops the gradients of values |
| `modes` | the stack of modes, `DisableTorchFunction` and its state | nothing public finds the active mode |
| `modules` | `_NormBase`, `_BatchNorm`, `_DropoutNd`, hooks, `_apply` | the common bases of layers are private |
| `opened` | `has_torch_function*` among a function's globals | torch hands values over before the body runs |
| `overridable` | the set behind `get_ignored_functions` | torch lists functions by mistake, and dynamo trusts it |
| `plainly` | what `export` and `functorch` read | every operation asks whether anything traces or transforms it |
| `pytrees`, `own_pytrees` | `torch.utils._pytree` | values are pytrees, and torch's pytree registry is private |
| `replica` | `_parameters`, `_buffers`, `_modules`, hooks of `nn.Module` | a pass runs on modules of its own |
| `scripts` | `torch.jit.ScriptFunction`, `torch._C.ScriptMethod` | scripted code takes only tensors |
| `streams` | `_cuda_getCurrentRawStream` of `torch._C` | the public way to a stream makes an object for every launch |
| `tensors` | `Tensor._version` | nothing public tells whether a tensor was written to |
| `tracing` | `make_fx` of `torch.fx.experimental` | `torch.export` records no derivatives taken inside |
| `lifted` | `torch.ops.aten`, under `vmap` | `vmap` fixes the number of items in a few operations |
| `values_as_parameters` | `swap_tensor` behind `functional_call`, `typename` | torch wants tensors as parameters |

They support torch 2.11 to 2.13: the tests run with 2.13, and 2.11 has all these names.
"""

from collections.abc import Callable
from typing import Any

from momentprop.torch_compat import backward_hooks, dynamo, scripts, values_as_parameters
from momentprop.torch_compat.guard import UnknownTorchWarning as UnknownTorchWarning


def install(kind: type[Any], values_in: Callable[..., Any], where: Callable[[], str]) -> None:
    """Apply the patches of torch, once.

    Args:
        kind: the base of all values; its `without_rule` handles scripted functions.
        values_in: finds the values among arguments and keywords.
        where: names the running module.
    """
    if kind in _installed:
        return
    _installed.append(kind)
    dynamo.install(kind)
    backward_hooks.install(values_in, where)
    scripts.install(values_in)
    values_as_parameters.install(kind)


_installed: list[type[Any]] = []
