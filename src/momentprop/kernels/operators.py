"""Long kernels as single operations of a compiled graph.

A compiler copies short expressions into all that read them, so the hundreds of steps of a quadrature become thousands,
and compiling them takes most of the time. A long kernel is an *operator* instead: while `torch.compile` traces, it is
one operation of the graph, with another one for its gradients. Compiled code then runs what eager code runs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.codegen.layout import lies_as
from momentprop.codegen.programs import can_build
from momentprop.kernels.fuse import Kernel, Moments, differentiable
from momentprop.torch_compat.dynamo import constant
from momentprop.torch_compat.export import exporting
from momentprop.torch_compat.functorch import is_forward_mode, is_transforming

_RUNS: dict[str, Callable[..., Sequence[Tensor]]] = {}


def operator(kernel: Kernel) -> Kernel:
    """Make an elementwise kernel one operation of compiled graphs, where it can be built."""
    name = f"{kernel.__module__}.{kernel.__qualname__}"
    _RUNS[name] = functools.partial(differentiable, kernel, elementwise=True)

    @functools.wraps(kernel)
    def run(*inputs: Tensor) -> Moments:
        if is_traced(inputs[0]):
            return Moments(*torch.ops.momentprop.run(name, inputs))
        return kernel(*inputs)

    return run


def is_traced(like: Tensor) -> bool:
    """Return whether a compiler is tracing that takes operators on the device of a tensor."""
    return torch.compiler.is_compiling() and not exporting() and _serves(like.device.type)


@constant
def _serves(device: str) -> bool:
    """Return whether operators are built for a device; transforms inside of compiled code take formulas alone."""
    return can_build(device) and not is_transforming() and not is_forward_mode()


@torch.library.custom_op("momentprop::run", mutates_args=())
def _run(kernel: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run a kernel."""
    return [_lying_as(inputs[0], result) for result in _RUNS[kernel](*inputs)]


@_run.register_fake
def _(kernel: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(inputs[0]) for _ in range(2)]


@torch.library.custom_op("momentprop::gradients", mutates_args=())
def _gradients(kernel: str, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients by all inputs, from those of the results."""
    return [_lying_as(x, grad) for x, grad in zip(inputs, _pulled(kernel, inputs, grads), strict=True)]


@_gradients.register_fake
def _(kernel: str, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for x in inputs]


def _pulled(kernel: str, inputs: Sequence[Tensor], grads: Sequence[Tensor], again: bool = False) -> Sequence[Tensor]:
    with torch.enable_grad():
        given = [x if again and x.requires_grad else x.detach().requires_grad_() for x in inputs]
        results = _RUNS[kernel](*given)
    return torch.autograd.grad(results, given, grads, create_graph=again)


def _lying_as(like: Tensor, result: Tensor) -> Tensor:
    """Return a result in the memory format that compilers were told."""
    promised = torch.empty_like(like)
    return result if lies_as(promised, result) else promised.copy_(result)


def _keep(ctx: Any, inputs: tuple[str, Sequence[Tensor]], output: Any) -> None:
    ctx.kernel, tensors = inputs
    ctx.save_for_backward(*tensors)


def _pull_back(ctx: Any, grads: Sequence[Tensor]) -> tuple[None, Sequence[Tensor]]:
    if torch.is_grad_enabled():  # a second derivative will be asked for
        return None, list(_pulled(ctx.kernel, ctx.saved_tensors, grads, again=True))
    return None, torch.ops.momentprop.gradients(ctx.kernel, ctx.saved_tensors, grads)


_run.register_autograd(_pull_back, setup_context=_keep)
