"""Built elementwise kernels and their derivatives."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from momentprop.codegen.formula import Unprintable, record
from momentprop.codegen.identity import Unidentified, identity_of
from momentprop.codegen.layout import aligned, are_buildable
from momentprop.codegen.programs import STATE, Functions, Program, program_for
from momentprop.kernels.autograd import Fused, outputs_of
from momentprop.kernels.derivatives import gradients, is_transformed, pullback, requires_grad
from momentprop.kernels.moments import Kernel, at_finite_means, exact_where_certain, flat_partials
from momentprop.torch_compat.plainly import runs_plainly


def if_built(
    kernel: Kernel,
    like: Sequence[Tensor],
    made: Callable[[], Sequence[Tensor]],
) -> tuple[Tensor, Tensor] | None:
    """Return an elementwise kernel's result by its program, or None if the program is not built yet.

    The program takes tensors that `made` must first make; the given ones are `like` them in type, device and number.
    """
    program = built_program(kernel, None, False, like)
    return None if program is None else run_built(program, kernel, None, made())


def built_program(
    kernel: Kernel,
    plain: Callable[[Tensor], Tensor] | None,
    noisy: bool,
    inputs: Sequence[Tensor],
    key: Hashable = None,
) -> Program | None:
    """Return the built kernel for these tensors, if there is one; a `key` tells the kernel and `plain` apart."""
    if not may_be_built(inputs):
        return None
    if key is None:
        try:
            key = identity_of(kernel), _identity_if_any(plain)
        except Unidentified:
            return None
    return program_for((key, noisy), inputs, lambda: _functions(kernel, plain, noisy, len(inputs)))


def _identity_if_any(plain: Callable[[Tensor], Tensor] | None) -> Hashable:
    try:
        return identity_of(plain)
    except Unidentified:
        return Unidentified


def may_be_built(inputs: Sequence[Tensor]) -> bool:
    """Return whether programs can run on these tensors now."""
    return STATE["mode"] != "eager" and are_buildable(inputs) and runs_plainly()


def _functions(kernel: Kernel, plain: Callable[[Tensor], Tensor] | None, noisy: bool, arity: int) -> Functions:
    """Return what a program of an elementwise kernel computes, as functions to record."""
    bounded = kernel if plain is None else at_finite_means(kernel)
    takes_certain = plain is not None and not _is_plainly_exact(plain)

    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        inputs = given[:arity]
        certain = None if plain is None else given[arity] if takes_certain else plain(inputs[0])
        return exact_where_certain(bounded(*inputs), certain, noisy, inputs)

    def backward(*given: Tensor) -> Sequence[Tensor]:
        inputs, grads = given[:arity], given[arity:]
        moments = bounded(*inputs)
        if moments.partials is None:
            return gradients(moments[:2], inputs, grads)
        flat = flat_partials(moments)
        return [grads[0] * flat[2 * i] + grads[1] * flat[2 * i + 1] for i in range(arity)]

    return Functions(forward, backward, ([True] * (arity + takes_certain), [True] * (arity + 2)), takes_certain)


_EXACT = frozenset(("relu", "leaky_relu", "abs", "neg", "clamp", "clamp_min", "clamp_max"))


def _is_plainly_exact(plain: Callable[[Tensor], Tensor]) -> bool:
    """Return whether a printed function equals torch's to the last digit, because it rounds nothing."""
    try:
        steps = record(lambda x: [plain(x)], [True], torch.float32).steps
    except Unprintable:
        return False
    return len(steps) <= 1 and all(step.op in _EXACT for step in steps)


def run_built(
    program: Program, kernel: Kernel, plain: Callable[[Tensor], Tensor] | None, inputs: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Run a program so that it can be differentiated: by its kernel where it has no derivative itself."""
    if program.takes_certain:
        assert plain is not None
        inputs = aligned((*inputs, certain_of(plain, inputs[0])))
    else:
        inputs = aligned(inputs)
    if requires_grad(inputs):
        return _Built.apply(program, kernel, plain, *inputs)  # type: ignore[no-untyped-call, no-any-return]
    mean, variance = program.forward(*inputs)
    return mean, variance


def certain_of(plain: Callable[[Tensor], Tensor], mean: Tensor) -> Tensor:
    """Return the plain function of a certain input, as a constant."""
    if not torch.is_grad_enabled():
        return plain(mean)
    with torch.no_grad():
        return plain(mean.detach())


def built_slope(result: Tensor, source: Tensor) -> Tensor | None:
    """Return the derivative of a program's mean by the input's mean, without the work of a backward pass of torch.

    Return None if no program has made the mean directly from this input.
    """
    node: Any = result.grad_fn
    if result.output_nr or not getattr(node, "is_of_elements", False) or not source.requires_grad:
        return None
    if node.next_functions[0] != tuple(get_gradient_edge(source)[:2]):
        return None
    with torch.no_grad():
        ones, zeros = torch.ones_like(result), torch.zeros_like(result)
        slope: Tensor = node.program.backward(*aligned((*node.saved_tensors, ones, zeros)))[0]
    return slope


class _Built(torch.autograd.Function):
    """Runs a program; saves only its inputs."""

    @staticmethod
    def forward(
        ctx: Any, program: Program, kernel: Kernel, plain: Callable[[Tensor], Tensor] | None, *inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.program, ctx.is_of_elements = program, True
        ctx.kernel = kernel if plain is None else at_finite_means(kernel)
        arity = len(inputs) - program.takes_certain
        ctx.save_for_backward(*inputs[:arity])
        mean, variance = program.forward(*inputs)
        return mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, program, kernel = ctx.saved_tensors, ctx.program, ctx.kernel
        last = (None,) * program.takes_certain
        if torch.is_grad_enabled():  # a second derivative will be asked for: by the formula
            wanted = [i for i, x in enumerate(inputs) if x.requires_grad]
            given = [x.view_as(x) if i in wanted else x for i, x in enumerate(inputs)]  # see `apart`; no new leaves
            results = Fused.apply(kernel, None, False, *given)[:2]  # type: ignore[no-untyped-call]
            found = torch.autograd.grad(results, [given[i] for i in wanted], grads, create_graph=True)
            totals: list[Tensor | None] = [None] * len(inputs)
            for i, total in zip(wanted, found, strict=True):
                totals[i] = total
            return None, None, None, *totals, *last
        if is_transformed(grads):  # many gradients at once
            return None, None, None, *pullback(outputs_of(kernel, range(2)), *inputs)[1](grads), *last
        return None, None, None, *program.backward(*aligned((*inputs, *grads))), *last
