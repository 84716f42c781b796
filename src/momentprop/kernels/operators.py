"""Long kernels as single operations in graphs compiled for a CPU.

A compiler copies short expressions into every reader, so a quadrature's hundreds of steps become thousands, and
compiling them takes most of the time. A long kernel is an *operator* instead: while `torch.compile` traces, it is one
operation of the graph, with another for its gradients. Compiled code then runs what eager code runs. On a GPU,
compilers get the steps: a CUDA graph could otherwise record a kernel before it is built.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.codegen.c_library import compiler
from momentprop.codegen.programs import mode
from momentprop.kernels.derivatives import apart, gradients
from momentprop.kernels.fuse import fused
from momentprop.kernels.moments import Kernel, Moments
from momentprop.torch_compat.dynamo import constant
from momentprop.torch_compat.export import exporting
from momentprop.torch_compat.functorch import is_forward_mode, is_transforming

Run = Callable[..., Sequence[Tensor]]

_RUNS: dict[str, Run] = {}


def operator(kernel: Kernel) -> Kernel:
    """Make an elementwise kernel an operator. Compiled, it returns no partial derivatives: autograd asks for them."""
    name = registered(kernel, functools.partial(fused, kernel, None, elementwise=True))

    @functools.wraps(kernel)
    def run(mean: Tensor, variance: Tensor) -> Moments:
        if is_traced(mean):
            result, spread = operated(name, [mean, variance], [True, True])
            return Moments(result, spread)
        return kernel(mean, variance)

    return run


def registered(kernel: Callable[..., Any], run: Run) -> str:
    """Keep what an operator runs under a name that is the same in every process, for caches of compiled code."""
    name = _title(kernel)
    _RUNS[name] = run
    return name


def operated(name: str, inputs: Sequence[Tensor], wide: Sequence[bool]) -> list[Tensor]:
    """Run an operator; `wide` says for each result whether it has one element for each element of a row."""
    return torch.ops.momentprop.run(name, inputs, wide)  # type: ignore[no-any-return]


def is_traced(like: Tensor) -> bool:
    """Return whether a compiler is tracing that accepts operators for tensors like this one."""
    return torch.compiler.is_compiling() and like.is_cpu and not exporting() and _are_wanted()


@constant
def _are_wanted() -> bool:
    """Return whether kernels are built, and no transform of compiled code, which needs their steps, is running."""
    return mode() != "eager" and compiler() is not None and not is_transforming() and not is_forward_mode()


def _title(kernel: Any) -> str:
    if isinstance(kernel, functools.partial):
        return f"{_title(kernel.func)}{kernel.args}{kernel.keywords}"
    return f"{kernel.__module__}.{kernel.__qualname__}"


@torch.library.custom_op("momentprop::run", mutates_args=())
def _run(kernel: str, inputs: Sequence[Tensor], wide: Sequence[bool]) -> list[Tensor]:
    """Run a kernel."""
    promised = _promised(inputs, wide, device="meta")
    return [_lying_as(like, result) for like, result in zip(promised, _RUNS[kernel](*inputs), strict=True)]


@_run.register_fake
def _(kernel: str, inputs: Sequence[Tensor], wide: Sequence[bool]) -> list[Tensor]:
    return _promised(inputs, wide)


# not a `custom_op`, inside which nothing can be differentiated
torch.library.define("momentprop::gradients", "(str kernel, Tensor[] inputs, Tensor[] grads) -> Tensor[]")


@torch.library.impl("momentprop::gradients", "cpu")
def _gradients(kernel: str, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients by all inputs, from the results' gradients."""
    pulled = _pulled(kernel, inputs, grads)
    return [_lying_as(torch.empty_like(x, device="meta"), grad) for x, grad in zip(inputs, pulled, strict=True)]


@torch.library.register_fake("momentprop::gradients")  # type: ignore[untyped-decorator]
def _(kernel: str, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for x in inputs]


def _pulled(kernel: str, inputs: Sequence[Tensor], grads: Sequence[Tensor], again: bool = False) -> Sequence[Tensor]:
    with torch.enable_grad():
        given = apart(inputs, again)
        results = _RUNS[kernel](*given)
        if not any(result.requires_grad for result in results):  # they would count as constants
            raise RuntimeError(
                f"torch {torch.__version__} does not differentiate inside of operators: use another version of torch"
            )
        return gradients(results, given, grads, again)


def _promised(inputs: Sequence[Tensor], wide: Sequence[bool], **options: Any) -> list[Tensor]:
    """Return empty tensors with the results' shapes and memory formats."""
    first, shape = inputs[0], torch.broadcast_shapes(*(x.shape for x in inputs))
    if first.shape == shape and all(wide):
        return [torch.empty_like(first, **options) for _ in wide]
    return [first.new_empty(shape if each else (*shape[:-1], 1), **options) for each in wide]


def _lying_as(like: Tensor, result: Tensor) -> Tensor:
    return result if result.stride() == like.stride() else torch.empty_like(like, device=result.device).copy_(result)


def _keep(ctx: Any, inputs: tuple[str, Sequence[Tensor], Sequence[bool]], output: Any) -> None:
    ctx.kernel, tensors, _ = inputs
    ctx.save_for_backward(*tensors)


def _pull_back(ctx: Any, grads: Sequence[Tensor]) -> tuple[None, Sequence[Tensor], None]:
    if torch.is_grad_enabled():  # a second derivative will be asked for
        return None, list(_pulled(ctx.kernel, ctx.saved_tensors, grads, again=True)), None
    return None, torch.ops.momentprop.gradients(ctx.kernel, ctx.saved_tensors, grads), None


_run.register_autograd(_pull_back, setup_context=_keep)
