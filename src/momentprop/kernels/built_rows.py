"""Built kernels of rows, as functions that can be differentiated, even twice."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from momentprop.codegen.identity import identity_of
from momentprop.codegen.layout import in_rows, widths
from momentprop.codegen.programs import Functions, Program, program_for
from momentprop.kernels.derivatives import apart, gradients, is_transformed, pullback

RowKernel = Callable[..., Any]  # a sequence of tensors, or `Moments`, whose partial derivatives are left out


def functions_of(kernel: RowKernel, wide: tuple[bool, ...], results: tuple[bool, ...], constants: int = 0) -> Functions:
    """Return what the program of a kernel computes, as functions to record; its first `constants` have no gradients."""

    def forward(*inputs: Tensor) -> Sequence[Tensor]:
        return kernel(*inputs)[: len(results)]  # type: ignore[no-any-return]

    def backward(*given: Tensor) -> Sequence[Tensor]:
        inputs, grads = given[: len(wide)], given[len(wide) :]
        return gradients(forward(*inputs)[constants:], inputs, grads)

    return Functions(forward, backward, (wide, wide + results[constants:]))


def varying(kernel: RowKernel, constants: int) -> RowKernel:
    """Return a kernel without its first results."""
    return partial(_after, constants, kernel) if constants else kernel


def _after(constants: int, kernel: RowKernel, *inputs: Tensor) -> Sequence[Tensor]:
    return kernel(*inputs)[constants:]  # type: ignore[no-any-return]


def _functions_of_pullback(kernel: RowKernel, wide: tuple[bool, ...], results: tuple[bool, ...]) -> Functions:
    """A kernel's derivative, and the latter's derivative by its cotangents: the kernel's own, in forward mode."""
    forward = functions_of(kernel, wide, results).backward

    def backward(*given: Tensor) -> Sequence[Tensor]:
        inputs, tangents = given[: len(wide)], given[len(wide) :]
        outputs = kernel(*inputs)[: len(results)]
        cotangents = [torch.zeros_like(y).requires_grad_() for y in outputs]
        return gradients(gradients(outputs, inputs, cotangents, again=True), cotangents, tangents)

    return Functions(forward, backward, (wide + results, wide + wide))


def _program_of_pullback(kernel: RowKernel, inputs: Sequence[Tensor], results: tuple[bool, ...]) -> Program | None:
    """Return the program of a kernel's derivative, if it has one, and of the second derivative."""
    row, wide = widths(*[x.shape for x in inputs])
    key = ("pullback", identity_of(kernel), wide)
    return program_for(key, inputs, partial(_functions_of_pullback, kernel, wide, results), row)


class Runs(Protocol):
    """What computes a kernel and its pullback, such as a program."""

    @property
    def forward(self) -> Callable[..., Sequence[Tensor]]:
        """The results, from the inputs."""

    @property
    def backward(self) -> Callable[..., Sequence[Tensor]]:
        """The gradients by the inputs, from these and the gradients by the results."""


class BuiltRows(torch.autograd.Function):
    """Runs a program; saves only its inputs. `results` is None for a program of factors.

    The first `constants` of the results have no derivative.
    """

    @staticmethod
    def forward(
        ctx: Any, program: Runs, kernel: RowKernel, results: tuple[bool, ...] | None, constants: int, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the program."""
        ctx.program, ctx.kernel, ctx.results, ctx.constants = program, kernel, results, constants
        ctx.save_for_backward(*inputs)
        found = tuple(program.forward(*inputs))
        if constants:
            ctx.mark_non_differentiable(*found[:constants])
            ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Run the program's pullback, or the formula where a second derivative is needed."""
        inputs, constants = ctx.saved_tensors, ctx.constants
        results = None if ctx.results is None else ctx.results[constants:]
        if constants:
            grads = _with_zeros(grads[constants:], results or (), inputs)
        if torch.is_grad_enabled():  # a second derivative will be asked for
            return None, None, None, None, *_pulled_twice(varying(ctx.kernel, constants), results, inputs, grads)
        if is_transformed(grads):  # many gradients at once
            kernel, count = varying(ctx.kernel, constants), len(grads)
            pull = pullback(lambda *given: tuple(kernel(*given)[:count]), *inputs)[1]
            return None, None, None, None, *pull(grads)
        rows = [grad if grad.is_contiguous() else in_rows(grad, grad.shape[:-1]) for grad in grads]
        found = ctx.program.backward(*inputs, *rows)
        return None, None, None, None, *_summed(found, inputs, ctx.needs_input_grad[4:])


def _with_zeros(grads: Sequence[Tensor | None], wide: Sequence[bool], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return gradients by results, zero where a result was not used."""
    first, row = inputs[0], widths(*[x.shape for x in inputs])[0]
    return tuple(
        first.new_zeros(*first.shape[:-1], row if each else 1) if grad is None else grad
        for grad, each in zip(grads, wide, strict=True)
    )


def _pulled_twice(
    kernel: RowKernel, results: tuple[bool, ...] | None, inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> Sequence[Tensor]:
    """Return derivatives that can be differentiated again: by their cotangents with a program, if there is one."""
    program = None if results is None or is_transformed(grads) else _program_of_pullback(kernel, inputs, results)
    if program is None:
        return _by_formula(kernel, inputs, grads)
    leading = inputs[0].shape[:-1]
    found = _Pulled.apply(program, kernel, inputs, *(in_rows(grad, leading) for grad in grads))  # type: ignore[no-untyped-call]
    curved = _Curved.apply(kernel, grads, *inputs)  # type: ignore[no-untyped-call]
    return [x + y for x, y in zip(found, curved, strict=True)]


def _by_formula(kernel: RowKernel, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> Sequence[Tensor]:
    given = apart(inputs)
    return gradients(kernel(*given)[: len(grads)], given, grads, again=True)


class _Pulled(torch.autograd.Function):
    """A kernel's derivative as a function of its cotangents, in which it is linear."""

    @staticmethod
    def forward(
        ctx: Any, program: Program, kernel: RowKernel, inputs: tuple[Tensor, ...], *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        ctx.program, ctx.kernel, ctx.inputs = program, kernel, inputs
        ctx.save_for_backward(*grads)
        return _summed(program.forward(*inputs, *grads), inputs, [True] * len(inputs))

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        inputs, again = ctx.inputs, torch.is_grad_enabled()
        if again or is_transformed(tangents):
            with torch.enable_grad():
                grads = [grad.detach().requires_grad_() for grad in ctx.saved_tensors]
                pulled = _by_formula(ctx.kernel, inputs, grads)
            return None, None, None, *gradients(pulled, grads, tangents, again)
        leading = inputs[0].shape[:-1]
        return None, None, None, *ctx.program.backward(*inputs, *(in_rows(x, leading) for x in tangents))


class _Curved(torch.autograd.Function):
    """Zeros with the derivative of a kernel's derivative by its inputs."""

    @staticmethod
    def forward(ctx: Any, kernel: RowKernel, grads: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.kernel, ctx.grads = kernel, grads
        ctx.save_for_backward(*inputs)
        return tuple(torch.zeros_like(x) for x in inputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        inputs, grads, again = ctx.saved_tensors, ctx.grads, torch.is_grad_enabled()
        with torch.enable_grad():
            given = apart(inputs, again)
            fixed = grads if again else [grad.detach() for grad in grads]
            pulled = gradients(ctx.kernel(*given)[: len(grads)], given, fixed, again=True)
        return None, None, *gradients(pulled, given, tangents, again)


def _summed(gradients: Sequence[Tensor], inputs: Sequence[Tensor], needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Return the needed gradients by inputs whose rows repeat, from the gradients by all their rows."""
    return tuple(
        (total if total.shape == x.shape else total.sum_to_size(x.shape)) if need else None
        for total, x, need in zip(gradients, inputs, needed, strict=True)
    )
