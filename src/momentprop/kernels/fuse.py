r"""One autograd function for all kernels.

A *kernel* maps tensors (a mean, a variance, perhaps parameters) to the mean and variance of the result. If it also
gives its partial derivatives in closed form, the forward pass computes them, sharing all expensive terms, and the
backward pass is a handful of products. Otherwise only the inputs are saved, and the backward pass differentiates the
kernel again.

Second derivatives work: the partial derivatives are outputs of the function, so torch differentiates through them, by
differentiating the kernel's own expression for them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from momentprop.codegen.formula import Unprintable, record
from momentprop.codegen.identity import Unidentified, identity_of
from momentprop.codegen.layout import aligned, are_buildable
from momentprop.codegen.programs import Functions, Program, mode, program_for
from momentprop.torch_compat.export import exporting, scripting
from momentprop.torch_compat.functorch import forward_levels, is_forward_mode, is_transforming, is_wrapped

Partials = tuple[tuple[Tensor, Tensor], ...]
"""For each input of a kernel: the derivative of the mean and of the variance of its result."""


class Moments(NamedTuple):
    """The result of a kernel: two moments and, if known in closed form, a function that returns their derivatives."""

    mean: Tensor
    variance: Tensor
    partials: Callable[[], Partials] | None = None


Kernel = Callable[..., Moments]


def fused(
    kernel: Kernel,
    plain: Callable[[Tensor], Tensor] | None,
    mean: Tensor,
    variance: Tensor,
    *more: Tensor,
    noisy: bool = False,
    elementwise: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of $f(X)$ by a `kernel`, where `plain` is $f$ itself.

    Inputs broadcast. Half-precision inputs are computed in float32. If `plain` is given, a certain input stays certain:
    where the variance is exactly zero, the result is exactly `plain(mean)` and its variance is zero. An infinite mean
    gives `plain(mean)` too, with the variance of the largest finite mean. A `noisy` result has a variance of its own,
    also where the input has none. An `elementwise` kernel is built, if there is a compiler: see `codegen`.
    """
    dtype = mean.dtype
    inputs: tuple[Tensor, ...] = (mean, variance, *more)
    if more or mean.shape != variance.shape:
        inputs = torch.broadcast_tensors(*inputs)
    elementwise = elementwise or plain is not None
    if dtype not in (torch.float16, torch.bfloat16):
        return differentiable(kernel, *inputs, plain=plain, noisy=noisy, elementwise=elementwise)
    inputs = tuple(tensor.float() for tensor in inputs)
    in_half = None if plain is None else lambda x: plain(x.to(dtype)).float()
    result, spread = differentiable(kernel, *inputs, plain=in_half, noisy=noisy, elementwise=elementwise)
    return result.to(dtype), spread.to(dtype)


def differentiable(
    kernel: Kernel,
    *inputs: Tensor,
    plain: Callable[[Tensor], Tensor] | None = None,
    noisy: bool = False,
    elementwise: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run any kernel, elementwise or not, so that few tensors are saved for its derivatives."""
    if elementwise:
        program = _program(kernel, plain, noisy, inputs)
        if program is not None:
            return _run(program, _Source(kernel, plain, noisy), aligned(inputs))
    compiling = torch.compiler.is_compiling()
    certain = None
    if plain is not None:
        with torch.no_grad():  # not inside the autograd function: `plain` may hold tensors under a transform
            certain = plain(inputs[0].detach())
        kernel = _at_finite_means(kernel)
    differentiated = requires_grad(inputs)
    scripted = not compiling and scripting()
    if not compiling and (differentiated or is_transformed(inputs)) and not scripted:
        return _Fused.apply(kernel, certain, noisy, *inputs)[:2]  # type: ignore[no-untyped-call, no-any-return]
    moments = kernel(*inputs)
    # dynamo does not support `jvp`, and compilers choose what to save; closed-form partials are kept. An export would
    # cut the graph here: it keeps the result of an autograd function and drops its `backward`
    attached = compiling and differentiated and moments.partials is not None and not exporting()
    follows = (differentiated or scripted) and not attached
    mean, variance = _exact_where_certain(moments, certain, noisy, inputs, follows)
    if attached:
        constants = [tensor.detach() for tensor in (mean, variance, *_flat_partials(moments))]
        return _Attached.apply(*constants, *inputs)  # type: ignore[no-untyped-call, no-any-return]
    return mean, variance


def if_built(
    kernel: Kernel,
    like: Sequence[Tensor],
    made: Callable[[], Sequence[Tensor]],
) -> tuple[Tensor, Tensor] | None:
    """Return the result of an elementwise kernel by its program, or None if that has not been built.

    The program takes tensors that must first be `made`; those given are `like` them in type, device and number.
    """
    program = _program(kernel, None, False, like)
    return None if program is None else _run(program, _Source(kernel, None, False), aligned(made()))


class _Source(NamedTuple):
    """What a program was made of, for derivatives that it does not have."""

    kernel: Kernel
    plain: Callable[[Tensor], Tensor] | None
    noisy: bool


def _program(
    kernel: Kernel, plain: Callable[[Tensor], Tensor] | None, noisy: bool, inputs: Sequence[Tensor]
) -> Program | None:
    """Return the built kernel for these tensors, if there is one."""
    if not may_be_built(inputs):
        return None
    try:
        key = identity_of(kernel)
    except Unidentified:
        return None
    try:
        of_plain = identity_of(plain)
    except Unidentified:
        of_plain = Unidentified
    wanted = partial(_functions, kernel, plain, noisy, len(inputs))
    return program_for((key, of_plain, noisy), inputs, wanted)


def may_be_built(inputs: Sequence[Tensor]) -> bool:
    """Return whether programs may run on these tensors now."""
    return not (
        mode() == "eager"
        or torch.compiler.is_compiling()
        or not are_buildable(inputs)
        or scripting()
        or is_transforming()
        or is_forward_mode()
    )


def _functions(kernel: Kernel, plain: Callable[[Tensor], Tensor] | None, noisy: bool, arity: int) -> Functions:
    """Return what a program of an elementwise kernel computes, as functions to record."""
    bounded = kernel if plain is None else _at_finite_means(kernel)
    takes_certain = plain is not None and not _is_plainly_exact(plain)

    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        inputs = given[:arity]
        certain = None if plain is None else given[arity] if takes_certain else plain(inputs[0])
        return _exact_where_certain(bounded(*inputs), certain, noisy, inputs)

    def backward(*given: Tensor) -> Sequence[Tensor]:
        inputs, grads = given[:arity], given[arity:]
        moments = bounded(*inputs)
        if moments.partials is None:
            return gradients(moments[:2], inputs, grads)
        flat = _flat_partials(moments)
        return [grads[0] * flat[2 * i] + grads[1] * flat[2 * i + 1] for i in range(arity)]

    return Functions(forward, backward, ([True] * (arity + takes_certain), [True] * (arity + 2)), takes_certain)


def gradients(
    results: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor], again: bool = False
) -> Sequence[Tensor]:
    """Return the derivatives of results in some directions by all inputs; some results may have none.

    `again` makes a graph of them, for second derivatives.
    """
    pairs = [(result, grad) for result, grad in zip(results, grads, strict=True) if result.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]
    results, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(results, inputs, grads, create_graph=again, allow_unused=True, materialize_grads=True)


_EXACT = frozenset(("relu", "leaky_relu", "abs", "neg", "clamp", "clamp_min", "clamp_max"))


def _is_plainly_exact(plain: Callable[[Tensor], Tensor]) -> bool:
    """Return whether a printed function gives torch's own result to the last digit: one without roundings."""
    try:
        steps = record(lambda x: [plain(x)], [True], torch.float32).steps
    except Unprintable:
        return False
    return len(steps) <= 1 and all(step.op in _EXACT for step in steps)


def _run(program: Program, source: _Source, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Run a program, so that it can be differentiated."""
    if requires_grad(inputs):
        return _Built.apply(program, source, *inputs)  # type: ignore[no-untyped-call, no-any-return]
    return _outputs_of(program, source, inputs)


def _outputs_of(program: Program, source: _Source, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    if program.takes_certain:
        assert source.plain is not None
        with torch.no_grad():
            certain = source.plain(inputs[0].detach())
        inputs = aligned((*inputs, certain))
    mean, variance = program.forward(*inputs)
    return mean, variance


class _Built(torch.autograd.Function):
    """Runs a program; its inputs are all that is saved."""

    @staticmethod
    def forward(ctx: Any, program: Program, source: _Source, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        ctx.program, ctx.source = program, source
        ctx.save_for_backward(*inputs)
        return _outputs_of(program, source, inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, program = ctx.saved_tensors, ctx.program
        kernel, plain, noisy = ctx.source
        bounded = kernel if plain is None else _at_finite_means(kernel)
        if torch.is_grad_enabled():  # a second derivative will be asked for: by the formula
            results = _Fused.apply(bounded, None, noisy, *inputs)[:2]  # type: ignore[no-untyped-call]
            wanted = [i for i, x in enumerate(inputs) if x.requires_grad]
            found = torch.autograd.grad(results, [inputs[i] for i in wanted], grads, create_graph=True)
            totals: list[Tensor | None] = [None] * len(inputs)
            for i, total in zip(wanted, found, strict=True):
                totals[i] = total
            return None, None, *totals
        if is_transformed(grads):  # many gradients at once
            return None, None, *pullback(_outputs(bounded, range(2)), *inputs)[1](grads)
        return None, None, *program.backward(*aligned((*inputs, *grads)))


def requires_grad(inputs: Sequence[Tensor]) -> bool:
    """Return whether what is computed from tensors will be differentiated."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)


def is_transformed(inputs: tuple[Tensor, ...]) -> bool:
    """Return whether some tensors take part in a transform or in forward-mode derivatives."""
    return is_forward_mode() or any(map(is_wrapped, inputs))


def _at_finite_means(kernel: Kernel) -> Kernel:
    """The kernel, with the largest finite mean (which it may double) in place of an infinite one."""

    def bounded(mean: Tensor, *more: Tensor) -> Moments:
        largest = torch.finfo(mean.dtype).max / 8
        if torch.compiler.is_compiling():
            return kernel(torch.where(_is_infinite(mean), mean.clamp(-largest, largest), mean), *more)
        return kernel(mean.nan_to_num(math.nan, largest, -largest), *more)

    return bounded


def _exact_where_certain(
    moments: Moments, certain: Tensor | None, noisy: bool, inputs: tuple[Tensor, ...], differentiated: bool = False
) -> tuple[Tensor, Tensor]:
    """The moments, with the plain function and no variance where the input is certain."""
    mean, variance = moments.mean, moments.variance
    if certain is None:
        return mean, variance
    sure = inputs[1] == 0
    known, none = certain, torch.zeros_like(variance)
    if differentiated:  # zeros, but with the derivatives of the kernel
        known, none = (x + (y - y.detach()).nan_to_num(0.0) for x, y in ((known, mean), (none, variance)))
    mean = torch.where(sure | _is_infinite(inputs[0]), known, mean)
    return mean, variance if noisy else torch.where(sure, none, variance)


def _is_infinite(x: Tensor) -> Tensor:
    """Where a number is infinite; inductor's vectors of a CPU are slow to ask this, so compiled code compares."""
    return x.abs() == math.inf if torch.compiler.is_compiling() else x.isinf()


class _Fused(torch.autograd.Function):
    """Saves the inputs of a kernel and its partial derivatives, if the kernel gives them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kernel: Kernel, certain: Tensor | None, noisy: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        moments = kernel(*inputs)
        return *_exact_where_certain(moments, certain, noisy, inputs), *_flat_partials(moments)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        kernel, _, _, *tensors = inputs
        ctx.kernel, ctx.arity = kernel, len(tensors)  # type: ignore[attr-defined]
        ctx.save_for_backward(*tensors, *output[2:])
        ctx.save_for_forward(*tensors, *output[2:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing refuses to unpack a tensor a second time
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
            more = _pulled(_outputs(ctx.kernel, wanted), inputs, directions, ctx.needs_input_grad[3:])
            totals = [_plus(total, extra) for total, extra in zip(totals, more, strict=True)]
        return None, None, None, *totals

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        refuse_forward_over_forward()
        saved = ctx.saved_tensors
        inputs, partials = saved[: ctx.arity], saved[ctx.arity :]
        along = tuple(
            torch.zeros_like(x) if tangent is None else tangent for x, tangent in zip(inputs, tangents[3:], strict=True)
        )
        outputs, pull = pullback(_outputs(ctx.kernel, range(2 + len(partials))), *inputs)
        _, push = pullback(lambda *cotangents: pull(cotangents), *(torch.zeros_like(out) for out in outputs))
        pushed = push(along)
        if partials:
            pairs = [partials[i::2] for i in range(2)]
            first = tuple(torch.stack([d * t for d, t in zip(pair, along, strict=True)]).sum(0) for pair in pairs)
            pushed = (*first, *pushed[2:])
        return pushed


def _pulled(
    function: Callable[..., Any], inputs: Sequence[Tensor], grads: Any, needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """Return the derivatives in some directions; by autograd where nothing needs more, so that programs may run."""
    if torch.is_grad_enabled() or is_transforming() or is_transformed((*inputs, *grads)):
        return pullback(function, *inputs)[1](grads)
    with torch.enable_grad():
        again = [x.detach().requires_grad_(need) for x, need in zip(inputs, needed, strict=True)]
        results = function(*again)
    found = iter(gradients(results, [x for x in again if x.requires_grad], grads))
    return [next(found) if need else None for need in needed]


class _Attached(torch.autograd.Function):
    """Attaches partial derivatives by the inputs to computed moments."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, variance: Tensor, *partials_and_inputs: Tensor) -> tuple[Tensor, Tensor]:
        return mean.clone(), variance.clone()

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        arity = (len(inputs) - 2) // 3  # two partial derivatives for each input
        ctx.save_for_backward(*inputs[2 : 2 + 2 * arity])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        partials = ctx.saved_tensors
        totals = [_dot(grads, partials[i : i + 2]) for i in range(0, len(partials), 2)]
        return (None,) * (2 + len(partials)) + tuple(totals)


def pullback(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, Callable[..., tuple[Tensor, ...]]]:
    """`torch.func.vjp`, typed for functions without auxiliary results."""
    result: Any = torch.func.vjp(function, *inputs)
    return result  # type: ignore[no-any-return]


def _flat_partials(moments: Moments) -> list[Tensor]:
    if moments.partials is None:
        return []
    # every output of an autograd function must be a separate tensor; a finite one, or a zero cotangent becomes NaN
    largest = torch.finfo(moments.mean.dtype).max
    return [d.expand_as(moments.mean).clamp(-largest, largest) for pair in moments.partials() for d in pair]


def _outputs(kernel: Kernel, wanted: Iterable[int]) -> Callable[..., tuple[Tensor, ...]]:
    """The wanted outputs among mean, variance and partial derivatives."""

    def outputs(*inputs: Tensor) -> tuple[Tensor, ...]:
        moments = kernel(*inputs)
        everything = (moments.mean, moments.variance, *_flat_partials(moments))
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


def refuse_forward_over_forward() -> None:
    """Raise an error inside nested forward-mode derivatives."""
    if forward_levels() > 1:
        raise NotImplementedError(
            "forward-mode over forward-mode derivatives of a custom function are wrong in torch; "
            "use `torch.func.hessian` or `torch.func.jacrev` for one of the two"
        )
