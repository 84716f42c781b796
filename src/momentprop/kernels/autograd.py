"""The autograd functions of kernels that run by their formulas."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from momentprop.kernels.derivatives import pullback, pulled, refuse_forward_over_forward
from momentprop.kernels.moments import Kernel, exact_where_certain, flat_partials


class Fused(torch.autograd.Function):
    """Saves a kernel's inputs, and its partial derivatives if the kernel gives them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kernel: Kernel, certain: Tensor | None, noisy: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the moments, and the partial derivatives after them."""
        moments = kernel(*inputs)
        return *exact_where_certain(moments, certain, noisy, inputs), *flat_partials(moments)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the inputs and the partial derivatives."""
        kernel, _, _, *tensors = inputs
        ctx.kernel, ctx.arity = kernel, len(tensors)  # type: ignore[attr-defined]
        ctx.save_for_backward(*tensors, *output[2:])
        ctx.save_for_forward(*tensors, *output[2:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Multiply by the partial derivatives, or differentiate the kernel."""
        saved = ctx.saved_tensors  # only once: checkpointing refuses to unpack a tensor a second time
        inputs, partials = saved[: ctx.arity], saved[ctx.arity :]
        totals: list[Tensor | None] = [None] * ctx.arity
        by_kernel = grads
        if partials:
            totals = [_dot(grads[:2], partials[2 * i : 2 * i + 2]) for i in range(ctx.arity)]
            by_kernel = (None, None, *grads[2:])
        wanted = [i for i, grad in enumerate(by_kernel) if grad is not None]
        if wanted:  # no closed form, or a second derivative
            # only these outputs: if another one overflows, its zero cotangent becomes NaN
            directions = tuple(by_kernel[i] for i in wanted)
            more = pulled(outputs_of(ctx.kernel, wanted), inputs, directions, ctx.needs_input_grad[3:])
            totals = [_plus(total, extra) for total, extra in zip(totals, more, strict=True)]
        return None, None, None, *totals

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        """Differentiate in forward mode, by two backward derivatives."""
        refuse_forward_over_forward()
        saved = ctx.saved_tensors
        inputs, partials = saved[: ctx.arity], saved[ctx.arity :]
        along = tuple(
            torch.zeros_like(x) if tangent is None else tangent for x, tangent in zip(inputs, tangents[3:], strict=True)
        )
        outputs, pull = pullback(outputs_of(ctx.kernel, range(2 + len(partials))), *inputs)
        _, push = pullback(lambda *cotangents: pull(cotangents), *(torch.zeros_like(out) for out in outputs))
        pushed = push(along)
        if partials:
            pairs = [partials[i::2] for i in range(2)]
            first = tuple(torch.stack([d * t for d, t in zip(pair, along, strict=True)]).sum(0) for pair in pairs)
            pushed = (*first, *pushed[2:])
        return pushed


class Attached(torch.autograd.Function):
    """Attaches partial derivatives by the inputs to computed moments."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, variance: Tensor, *partials_and_inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the moments."""
        return mean.clone(), variance.clone()

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Save the partial derivatives."""
        arity = (len(inputs) - 2) // 3  # two partial derivatives for each input
        ctx.save_for_backward(*inputs[2 : 2 + 2 * arity])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply by the partial derivatives."""
        partials = ctx.saved_tensors
        totals = [_dot(grads, partials[i : i + 2]) for i in range(0, len(partials), 2)]
        return (None,) * (2 + len(partials)) + tuple(totals)


def outputs_of(kernel: Kernel, wanted: Iterable[int]) -> Callable[..., tuple[Tensor, ...]]:
    """The wanted outputs among mean, variance and partial derivatives."""

    def outputs(*inputs: Tensor) -> tuple[Tensor, ...]:
        moments = kernel(*inputs)
        everything = (moments.mean, moments.variance, *flat_partials(moments))
        return tuple(everything[i] for i in wanted)

    return outputs


def _dot(grads: tuple[Tensor | None, ...], partials: tuple[Tensor, ...]) -> Tensor | None:
    total = None
    for grad, slope in zip(grads, partials, strict=True):
        total = _plus(total, None if grad is None else grad * slope)
    return total


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
