r"""One autograd function for all kernels.

A *kernel* maps tensors (a mean, a variance, perhaps parameters) to the mean and variance of the result. If it also
gives its partial derivatives in closed form, the forward pass computes them too, sharing all expensive terms, and the
backward pass is a handful of products. Otherwise it saves only the inputs, and the backward pass differentiates the
kernel again.

Second derivatives work: the partial derivatives are outputs of the function, so torch differentiates the kernel's own
expressions for them.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from momentprop.dispatch.memory import in_order_of
from momentprop.kernels.autograd import Attached, Fused
from momentprop.kernels.built import built_program, run_built
from momentprop.kernels.derivatives import is_transformed, requires_grad
from momentprop.kernels.moments import Kernel, at_finite_means, exact_where_certain, flat_partials
from momentprop.torch_compat.export import exporting, scripting


def fused(
    kernel: Kernel,
    plain: Callable[[Tensor], Tensor] | None,
    mean: Tensor,
    variance: Tensor,
    *more: Tensor,
    noisy: bool = False,
    elementwise: bool = False,
    key: Hashable = None,
) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of $f(X)$ by a `kernel`, where `plain` is $f$ itself.

    Inputs broadcast. Half-precision inputs are computed in float32. If `plain` is given, a certain input stays certain:
    where the variance is exactly zero, the result is exactly `plain(mean)` and its variance is zero. An infinite mean
    gives `plain(mean)` too, with the variance of the largest finite mean. A `noisy` result has its own variance, even
    where the input has none. An `elementwise` kernel is built if there is a compiler: see `codegen`. A
    `key` stands for a kernel with its `plain`.
    """
    inputs: tuple[Tensor, ...] = (mean, variance, *more)
    if more or mean.shape != variance.shape:
        inputs = torch.broadcast_tensors(*inputs)
    if mean.dtype in _HALF:
        dtype = mean.dtype
        in_half = None if plain is None else lambda x: plain(x.to(dtype)).float()
        wide = [tensor.float() for tensor in inputs]
        result, spread = fused(kernel, in_half, *wide, noisy=noisy, elementwise=elementwise)
        return result.to(dtype), spread.to(dtype)
    if elementwise or plain is not None:
        program = built_program(kernel, plain, noisy, inputs, key)
        if program is not None:
            return run_built(program, kernel, plain, inputs)
        inputs = (inputs[0], *[in_order_of(inputs[0], other) for other in inputs[1:]])
    return differentiable(kernel, *inputs, plain=plain, noisy=noisy)


_HALF = (torch.float16, torch.bfloat16)


def differentiable(
    kernel: Kernel,
    *inputs: Tensor,
    plain: Callable[[Tensor], Tensor] | None = None,
    noisy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run any kernel, elementwise or not, by its formula, saving few tensors for its derivatives."""
    compiling = torch.compiler.is_compiling()
    certain = None
    if plain is not None:
        with torch.no_grad():  # not inside the autograd function: `plain` can hold tensors under a transform
            certain = plain(inputs[0].detach())
        kernel = at_finite_means(kernel)
    differentiated = requires_grad(inputs)
    scripted = not compiling and scripting()
    if not compiling and (differentiated or is_transformed(inputs)) and not scripted:
        return Fused.apply(kernel, certain, noisy, *inputs)[:2]  # type: ignore[no-untyped-call, no-any-return]
    moments = kernel(*inputs)
    # dynamo does not support `jvp`, and compilers choose what to save; we keep closed-form partials. An export would
    # cut the graph here: it keeps the result of an autograd function and drops its `backward`
    attached = compiling and differentiated and moments.partials is not None and not exporting()
    follows = (differentiated or scripted) and not attached
    mean, variance = exact_where_certain(moments, certain, noisy, inputs, follows)
    if attached:
        constants = [tensor.detach() for tensor in (mean, variance, *flat_partials(moments))]
        return Attached.apply(*constants, *inputs)  # type: ignore[no-untyped-call, no-any-return]
    return mean, variance
