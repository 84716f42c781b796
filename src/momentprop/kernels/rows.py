"""Kernels of rows: computations along the last dimension, by a program where one is built.

A kernel of rows maps tensors to tensors with the same leading dimensions and the same last one, or 1. Without a program
it runs as written, on tensors that broadcast.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from momentprop.codegen.contraction import contracted, of_factors
from momentprop.codegen.formula import Unprintable, record
from momentprop.codegen.identity import Unidentified, identity_of
from momentprop.codegen.layout import beside, leading_shape, widths
from momentprop.codegen.programs import Functions, Program, program_for
from momentprop.kernels.built import may_be_built
from momentprop.kernels.built_rows import BuiltRows, RowKernel, functions_of
from momentprop.kernels.derivatives import requires_grad
from momentprop.kernels.operators import is_traced, operated, registered
from momentprop.torch_compat.dynamo import constant

_MOST_LENGTHS = 16  # row lengths for which a kernel is built: a text that grows by a word has a new length each time
_ANY_LENGTH = 8
_MOST_KEPT = 1 << 23  # elements of a contraction
_LENGTHS: Counter[Hashable] = Counter()
_KNOWN: set[Hashable] = set()


def along_rows(
    kernel: RowKernel, *inputs: Tensor, results: Sequence[bool] = (True, True), otherwise: RowKernel | None = None
) -> Sequence[Tensor]:
    """Run a kernel of rows; `results` says for each result whether it has one element for each element of a row.

    Without a program, `otherwise` runs, by default the kernel itself.
    """
    if is_traced(inputs[0]):
        name = _operator(kernel, tuple(x.shape[-1] != 1 for x in inputs), tuple(results))
        if name is not None:
            return operated(name, inputs, results)
    program = _program(kernel, inputs, results)
    if program is None:
        return (otherwise or kernel)(*inputs)  # type: ignore[no-any-return]
    arranged = beside(inputs)
    if requires_grad(inputs):
        return BuiltRows.apply(program, kernel, tuple(results), *arranged)  # type: ignore[no-untyped-call, no-any-return]
    return program.forward(*arranged)


def along_contraction(kernel: RowKernel, weights: Tensor, left: Tensor, right: Tensor, *others: Tensor) -> Tensor:
    r"""Run a kernel of rows on a contraction, $x_{qcd} = \sum_j w_{qj} l_{jc} r_{jd}$, and on other tensors.

    The kernel gives one number for each row, and the result has the shape `(..., queries, left features, 1)`. The other
    tensors broadcast. A CPU's program makes the contraction row by row and does not keep it; GPUs have fast matrix
    products.
    """
    factors, row = (weights, left, right), right.shape[-1]
    program = None
    if weights.is_cpu and may_be_built((*factors, *others)):
        wide = (True, *[x.shape[-1] == row for x in others])
        program = program_of_rows(kernel, (*factors, *others), row, wide, (False,), contracted=True)
    if program is None:
        return _in_pieces(kernel, factors, others)
    lanes = leading_shape(*[x.shape[:-1] for x in factors], *[x.shape[:-2] for x in others])
    given = [x.expand(*lanes, *x.shape[-2:]).contiguous() for x in factors]
    given += [x.expand(*lanes, weights.shape[-2], *x.shape[-2:]).contiguous() for x in others]
    if requires_grad((*factors, *others)):
        return BuiltRows.apply(program, of_factors(kernel), None, *given)[0]  # type: ignore[no-untyped-call, no-any-return]
    return program.forward(*given)[0]


def _in_pieces(kernel: RowKernel, factors: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> Tensor:
    """Run a kernel on contractions held in memory, for a few leading lanes at a time."""

    def run(*parts: Tensor) -> Tensor:
        return along_rows(kernel, contracted(*parts[:3]), *parts[3:], results=(False,))[0]

    weights, left, right = factors
    count = weights.shape[:-1].numel() * left.shape[-1] * right.shape[-1]
    aligned = all(x.ndim == weights.ndim for x in factors) and all(x.ndim == weights.ndim + 1 for x in others)
    if count <= _MOST_KEPT or not aligned or torch.compiler.is_compiling() or requires_grad((*factors, *others)):
        return run(*factors, *others)
    size = max(1, len(weights) * _MOST_KEPT // count)
    whole = (x.expand(len(weights), *x.shape[1:]) for x in (*factors, *others))
    return torch.cat([run(*parts) for parts in zip(*(x.split(size) for x in whole), strict=True)])


@constant
def _operator(kernel: RowKernel, wide: tuple[bool, ...], results: tuple[bool, ...]) -> str | None:
    """Return the name of the operator that runs a kernel, or None where it cannot be built, whatever the length."""
    try:
        record(functions_of(kernel, wide, results).forward, wide, torch.float32, _ANY_LENGTH)
    except Unprintable:
        return None
    return registered(kernel, lambda *inputs: along_rows(kernel, *inputs, results=results)[: len(results)])


def _program(kernel: RowKernel, inputs: Sequence[Tensor], results: Sequence[bool]) -> Program | None:
    if not may_be_built(inputs):
        return None
    row, wide = widths(*[x.shape for x in inputs])
    return program_of_rows(kernel, inputs, row, wide, tuple(results))


def program_of_rows(
    kernel: RowKernel,
    inputs: Sequence[Tensor],
    row: int,
    wide: tuple[bool, ...],
    results: tuple[bool, ...],
    contracted: bool = False,
) -> Program | None:
    """Return a kernel's program for tensors that `may_be_built` allows, by the length of their rows, if there is one.

    `wide` says for each input whether it has one element for each element of a row.
    """
    dtype, device = inputs[0].dtype, inputs[0].device
    if row == 1 or any([x.dtype is not dtype or x.device != device for x in inputs]):  # noqa: C419
        return None
    try:
        key = (identity_of(kernel), wide, contracted)
    except Unidentified:
        return None

    def functions() -> Functions:
        return functions_of(kernel, wide, results)._replace(contracted=contracted)

    return program_for(key, inputs, functions, row, lambda: _may_start(key, row))


def _may_start(key: Hashable, row: int) -> bool:
    """Return whether to build a kernel for rows of a length, and count the lengths."""
    if (key, row) not in _KNOWN:
        if _LENGTHS[key] == _MOST_LENGTHS:
            return False
        _LENGTHS[key] += 1
        _KNOWN.add((key, row))
    return True
