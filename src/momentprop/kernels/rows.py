"""Kernels of rows: what one computes along the last dimension, by a program where that has been built.

A kernel of rows maps tensors to tensors that have the same leading dimensions, and the same last one or 1. Without a
program it runs as it is written, on tensors that broadcast.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from momentprop.codegen.formula import Unprintable, record
from momentprop.codegen.identity import Unidentified, identity_of
from momentprop.codegen.layout import in_rows, leading_shape, widths
from momentprop.codegen.programs import Functions, Program, program_for
from momentprop.kernels.fuse import gradients, is_transformed, may_be_built, pullback, requires_grad
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
    leading = leading_shape(*[x.shape for x in inputs])
    first, *others = inputs
    if first.shape[:-1] != leading:
        first = first.expand(*leading, first.shape[-1])
    arranged = [first.contiguous(), *(in_rows(x, leading) for x in others)]
    if requires_grad(inputs):
        return _BuiltRows.apply(program, kernel, *arranged)  # type: ignore[no-untyped-call, no-any-return]
    return program.forward(*arranged)


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
    row, wide = widths(*[x.shape for x in inputs])
    if row == 1 or len({(x.dtype, x.device) for x in inputs}) > 1:
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


def _functions(kernel: RowKernel, wide: tuple[bool, ...], results: tuple[bool, ...]) -> Functions:
    def forward(*inputs: Tensor) -> Sequence[Tensor]:
        return kernel(*inputs)[: len(results)]  # type: ignore[no-any-return]

    def backward(*given: Tensor) -> Sequence[Tensor]:
        inputs, grads = given[: len(wide)], given[len(wide) :]
        return gradients(forward(*inputs), inputs, grads)

    return Functions(forward, backward, (wide, wide + results))


class _BuiltRows(torch.autograd.Function):
    """Runs a program; its inputs are all that is saved."""

    @staticmethod
    def forward(ctx: Any, program: Program, kernel: RowKernel, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.program, ctx.kernel = program, kernel
        ctx.save_for_backward(*inputs)
        return tuple(program.forward(*inputs))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, count = ctx.saved_tensors, len(grads)
        if torch.is_grad_enabled():  # a second derivative will be asked for
            given = [x if x.requires_grad else x.detach().requires_grad_() for x in inputs]
            return None, None, *gradients(ctx.kernel(*given)[:count], given, grads, again=True)
        if is_transformed(grads):  # many gradients at once
            return None, None, *pullback(lambda *given: tuple(ctx.kernel(*given)[:count]), *inputs)[1](grads)
        leading = inputs[0].shape[:-1]
        found = ctx.program.backward(*inputs, *(in_rows(grad, leading) for grad in grads))
        return None, None, *(total.sum_to_size(x.shape) for total, x in zip(found, inputs, strict=True))
