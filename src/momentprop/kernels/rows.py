"""Kernels of rows: what one computes along the last dimension, by a program where that has been built.

A kernel of rows maps tensors to tensors that have the same leading dimensions, and the same last one or 1. Without a
program it runs as it is written, on tensors that broadcast.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from momentprop.codegen.formula import Unprintable, record
from momentprop.codegen.identity import Unidentified, identity_of
from momentprop.codegen.layout import in_rows
from momentprop.codegen.programs import Functions, Program, program_for
from momentprop.kernels.fuse import gradients, is_transformed, may_be_built, pullback
from momentprop.kernels.operators import is_traced, operated, registered
from momentprop.torch_compat.dynamo import constant

RowKernel = Callable[..., Any]  # a sequence of tensors, or `Moments`, of which the partial derivatives are left out

_MOST_LENGTHS = 16  # of rows, for which a kernel is built: a text that grows by a word has a new length each time
_ANY_LENGTH = 8
_LENGTHS: Counter[Hashable] = Counter()
_KNOWN: set[Hashable] = set()


def along_rows(
    kernel: RowKernel, *inputs: Tensor, results: Sequence[bool] = (True, True), otherwise: RowKernel | None = None
) -> Sequence[Tensor]:
    """Run a kernel of rows; `results` says of each result whether it has an element for each one of a row.

    Where there is no program, `otherwise` runs, by default the kernel itself.
    """
    if is_traced(inputs[0]):
        name = _operator(kernel, tuple(x.shape[-1] != 1 for x in inputs), tuple(results))
        if name is not None:
            return operated(name, inputs, results)
    program = _program(kernel, inputs, results)
    if program is None:
        return (otherwise or kernel)(*inputs)  # type: ignore[no-any-return]
    shape = _common(x.shape[:-1] for x in inputs)
    leading = shape if shape else torch.Size((1,))
    found = _BuiltRows.apply(program, kernel, tuple(results), *(in_rows(x, leading) for x in inputs))  # type: ignore[no-untyped-call]
    return found if shape else [x[0] for x in found]


@constant
def _operator(kernel: RowKernel, wide: tuple[bool, ...], results: tuple[bool, ...]) -> str | None:
    """Return the name of the operator that runs a kernel, or None where it cannot be built; any length tells."""
    try:
        record(_functions(kernel, wide, results).forward, wide, torch.float32, _ANY_LENGTH)
    except Unprintable:
        return None
    return registered(kernel, lambda *inputs: along_rows(kernel, *inputs, results=results)[: len(results)])


def _program(kernel: RowKernel, inputs: Sequence[Tensor], results: Sequence[bool]) -> Program | None:
    if not may_be_built(inputs):
        return None
    row = max(x.shape[-1] for x in inputs)
    wide = tuple(x.shape[-1] == row for x in inputs)
    if row == 1 or any(x.dtype is not inputs[0].dtype or x.device != inputs[0].device for x in inputs):
        return None
    try:
        known = identity_of(kernel)
    except Unidentified:
        return None
    key = (known, wide)
    if (key, row) not in _KNOWN:
        if _LENGTHS[key] == _MOST_LENGTHS:
            return None
        _LENGTHS[key] += 1
        _KNOWN.add((key, row))
    return program_for(key, inputs, partial(_functions, kernel, wide, tuple(results)), row)


def _program_of_pullback(kernel: RowKernel, inputs: Sequence[Tensor], results: tuple[bool, ...]) -> Program | None:
    """Return the program of the derivative of a kernel that has one, and of the derivative of that in turn."""
    row = max(x.shape[-1] for x in inputs)
    wide = tuple(x.shape[-1] == row for x in inputs)
    key = ("pullback", identity_of(kernel), wide)
    return program_for(key, inputs, partial(_functions_of_pullback, kernel, wide, results), row)


def _common(shapes: Iterable[torch.Size]) -> torch.Size:
    """Return the shape that others broadcast to, at once where there is but one: torch's own function is slow."""
    different = set(shapes)
    return torch.broadcast_shapes(*different) if len(different) > 1 else different.pop()


def _functions(kernel: RowKernel, wide: tuple[bool, ...], results: tuple[bool, ...]) -> Functions:
    def forward(*inputs: Tensor) -> Sequence[Tensor]:
        return kernel(*inputs)[: len(results)]  # type: ignore[no-any-return]

    def backward(*given: Tensor) -> Sequence[Tensor]:
        inputs, grads = given[: len(wide)], given[len(wide) :]
        return gradients(forward(*inputs), inputs, grads)

    return Functions(forward, backward, (wide, wide + results))


def _functions_of_pullback(kernel: RowKernel, wide: tuple[bool, ...], results: tuple[bool, ...]) -> Functions:
    """The derivative of a kernel, and the derivative of that by its cotangents: the kernel's own, forwards."""
    forward = _functions(kernel, wide, results).backward

    def backward(*given: Tensor) -> Sequence[Tensor]:
        inputs, tangents = given[: len(wide)], given[len(wide) :]
        outputs = kernel(*inputs)[: len(results)]
        cotangents = [torch.zeros_like(y).requires_grad_() for y in outputs]
        return gradients(gradients(outputs, inputs, cotangents, again=True), cotangents, tangents)

    return Functions(forward, backward, (wide + results, wide + wide))


class _BuiltRows(torch.autograd.Function):
    """Runs a program; its inputs are all that is saved."""

    @staticmethod
    def forward(
        ctx: Any, program: Program, kernel: RowKernel, results: tuple[bool, ...], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.program, ctx.kernel, ctx.results = program, kernel, results
        ctx.save_for_backward(*inputs)
        return tuple(program.forward(*inputs))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, count = ctx.saved_tensors, len(grads)
        if torch.is_grad_enabled():  # a second derivative will be asked for
            return None, None, None, *_pulled_twice(ctx.kernel, ctx.results, inputs, grads)
        if is_transformed(grads):  # many gradients at once
            pull = pullback(lambda *given: tuple(ctx.kernel(*given)[:count]), *inputs)[1]
            return None, None, None, *pull(grads)
        leading = inputs[0].shape[:-1]
        return None, None, None, *ctx.program.backward(*inputs, *(in_rows(grad, leading) for grad in grads))


def _pulled_twice(
    kernel: RowKernel, results: tuple[bool, ...], inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> Sequence[Tensor]:
    """Return derivatives that can be differentiated again: by their cotangents with a program, where there is one."""
    program = None if is_transformed(grads) else _program_of_pullback(kernel, inputs, results)
    if program is None:
        return _by_formula(kernel, inputs, grads)
    leading = inputs[0].shape[:-1]
    found = _Pulled.apply(program, kernel, inputs, *(in_rows(grad, leading) for grad in grads))  # type: ignore[no-untyped-call]
    curved = _Curved.apply(kernel, grads, *inputs)  # type: ignore[no-untyped-call]
    return [x + y for x, y in zip(found, curved, strict=True)]


def _by_formula(kernel: RowKernel, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> Sequence[Tensor]:
    given = [x if x.requires_grad else x.detach().requires_grad_() for x in inputs]
    return gradients(kernel(*given)[: len(grads)], given, grads, again=True)


class _Pulled(torch.autograd.Function):
    """The derivative of a kernel as a function of its cotangents, of which it is linear."""

    @staticmethod
    def forward(
        ctx: Any, program: Program, kernel: RowKernel, inputs: tuple[Tensor, ...], *grads: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.program, ctx.kernel, ctx.inputs = program, kernel, inputs
        ctx.save_for_backward(*grads)
        return tuple(program.forward(*inputs, *grads))

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
    """Zeros with the derivative that a kernel's derivative has by its inputs."""

    @staticmethod
    def forward(ctx: Any, kernel: RowKernel, grads: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.kernel, ctx.grads = kernel, grads
        ctx.save_for_backward(*inputs)
        return tuple(torch.zeros_like(x) for x in inputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        inputs, grads, again = ctx.saved_tensors, ctx.grads, torch.is_grad_enabled()
        with torch.enable_grad():  # by views of the inputs: the cotangents may depend on these too
            given = [x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_() for x in inputs]
            fixed = grads if again else [grad.detach() for grad in grads]
            pulled = gradients(ctx.kernel(*given)[: len(grads)], given, fixed, again=True)
        return None, None, *gradients(pulled, given, tangents, again)
