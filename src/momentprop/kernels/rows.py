"""Kernels of rows: computations along the last dimension, by a program where one is built.

A kernel of rows maps tensors to tensors with the same leading dimensions and the same last one, or 1. Without a program
it runs as written, on tensors that broadcast.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

from momentprop.codegen.contraction import contracted, of_factors, pulled_back
from momentprop.codegen.formula import Unprintable, record
from momentprop.codegen.identity import Unidentified, identity_of
from momentprop.codegen.layout import beside, leading_shape, widths
from momentprop.codegen.programs import Functions, Program, program_for
from momentprop.kernels.built import may_be_built
from momentprop.kernels.built_rows import BuiltRows, RowKernel, Runs, functions_of
from momentprop.kernels.derivatives import requires_grad
from momentprop.kernels.operators import is_traced, operated, registered
from momentprop.torch_compat.dynamo import constant
from momentprop.torch_compat.plainly import runs_plainly

_MOST_LENGTHS = 16  # row lengths for which a kernel is built: a text that grows by a word has a new length each time
_ANY_LENGTH = 8
_MOST_KEPT = 1 << 23  # elements of a contraction
_LENGTHS: Counter[Hashable] = Counter()
_KNOWN: set[Hashable] = set()


def along_rows(
    kernel: RowKernel,
    *inputs: Tensor,
    results: Sequence[bool] = (True, True),
    constants: int = 0,
    otherwise: RowKernel | None = None,
) -> Sequence[Tensor]:
    """Run a kernel of rows; `results` says for each result whether it has one element for each element of a row.

    The first `constants` of the results have no derivative. Without a program, `otherwise` runs, by default the kernel
    itself.
    """
    if is_traced(inputs[0]):
        name = _operator(kernel, tuple(x.shape[-1] != 1 for x in inputs), tuple(results), constants)
        if name is not None:
            found = operated(name, inputs, results)
            return [*(x.detach() for x in found[:constants]), *found[constants:]] if constants else found
    program = _program(kernel, inputs, results, constants)
    if program is None:
        return (otherwise or kernel)(*inputs)  # type: ignore[no-any-return]
    arranged = beside(inputs)
    if requires_grad(inputs):
        return BuiltRows.apply(program, kernel, tuple(results), constants, *arranged)  # type: ignore[no-untyped-call, no-any-return]
    return program.forward(*arranged)


def along_contraction(kernel: RowKernel, weights: Tensor, left: Tensor, right: Tensor, *others: Tensor) -> Tensor:
    r"""Run a kernel of rows on a contraction, $x_{qcd} = \sum_j w_{qj} l_{jc} r_{jd}$, and on other tensors.

    The kernel gives one number for each row, and the result has the shape `(..., queries, left features, 1)`. The other
    tensors broadcast. A CPU's program makes the contraction row by row and does not keep it. Elsewhere, where matrix
    products are fast, it is made for a few lanes at a time, and made again for the derivative.
    """
    factors, inputs = (weights, left, right), (weights, left, right, *others)
    if not runs_plainly():
        return along_rows(kernel, contracted(*factors), *others, results=(False,))[0]
    lanes = leading_shape(*[x.shape[:-1] for x in factors], *[x.shape[:-2] for x in others])
    row, row_by_row, program = right.shape[-1], _row_by_row(weights), None
    wide = (True, *[x.shape[-1] == row for x in others])
    queries = torch.Size((*lanes, weights.shape[-2]))
    given = [x if x.shape[:-2] == lanes else x.expand(*lanes, *x.shape[-2:]) for x in factors]
    given += [x if x.shape[:-2] == queries else x.expand(*queries, *x.shape[-2:]) for x in others]
    given = [x if x.is_contiguous() else x.contiguous() for x in given]
    if may_be_built(inputs):
        program = program_of_rows(kernel, given, row, wide, (False,), contracted=row_by_row)
    differentiated = requires_grad(inputs)
    most = _MOST_KEPT * (2 if differentiated else 1)
    run: Runs = program if program is not None and row_by_row else InPieces(kernel, wide, program, most)
    if differentiated:
        return BuiltRows.apply(run, of_factors(kernel), None, 0, *given)[0]  # type: ignore[no-untyped-call, no-any-return]
    return run.forward(*given)[0]


def _row_by_row(weights: Tensor) -> bool:
    """Return whether a program makes a contraction itself."""
    return weights.is_cpu


class InPieces:
    """Runs the program of a kernel, or without one its formula, on contractions held in memory for a few lanes."""

    def __init__(self, kernel: RowKernel, wide: tuple[bool, ...], program: Program | None, most: int) -> None:
        self.run: Runs = functions_of(kernel, wide, (False,)) if program is None else program
        self.most = most  # elements of a contraction

    def forward(self, *given: Tensor) -> list[Tensor]:
        """Return the kernel's result."""
        found = [self.run.forward(contracted(*piece[:3]), *piece[3:])[0] for piece in _pieces(given, self.most)]
        return [found[0] if len(found) == 1 else torch.cat(found)]

    def backward(self, *given: Tensor) -> list[Tensor]:
        """Return the gradients by the factors and by the others, from these and from that by the result."""
        found = [pulled_back(self._pulled, *piece) for piece in _pieces(given, self.most)]
        return found[0] if len(found) == 1 else [torch.cat(parts) for parts in zip(*found, strict=True)]

    def _pulled(self, *given: Tensor) -> Sequence[Tensor]:
        if isinstance(self.run, Program):
            return self.run.backward(*given)
        with torch.enable_grad():
            *inputs, grad = given
            return self.run.backward(*(x.detach().requires_grad_() for x in inputs), grad)


def _pieces(given: Sequence[Tensor], most: int) -> list[Sequence[Tensor]]:
    """Cut factors of contractions of at most so many elements, and other tensors, into pieces of a few lanes."""
    weights, left, right = given[:3]
    count = weights.shape[:-1].numel() * left.shape[-1] * right.shape[-1]
    if count <= most or weights.ndim < 3:
        return [given]
    size = max(1, len(weights) * most // count)
    return list(zip(*(x.split(size) for x in given), strict=True))


@constant
def _operator(kernel: RowKernel, wide: tuple[bool, ...], results: tuple[bool, ...], constants: int) -> str | None:
    """Return the name of the operator that runs a kernel, or None where it cannot be built, whatever the length."""
    try:
        record(functions_of(kernel, wide, results).forward, wide, torch.float32, _ANY_LENGTH)
    except Unprintable:
        return None
    run = partial(along_rows, kernel, results=results, constants=constants)
    return registered(kernel, lambda *inputs: run(*inputs)[: len(results)])


def _program(kernel: RowKernel, inputs: Sequence[Tensor], results: Sequence[bool], constants: int) -> Program | None:
    if not may_be_built(inputs):
        return None
    row, wide = widths(*[x.shape for x in inputs])
    return program_of_rows(kernel, inputs, row, wide, tuple(results), constants)


def program_of_rows(
    kernel: RowKernel,
    inputs: Sequence[Tensor],
    row: int,
    wide: tuple[bool, ...],
    results: tuple[bool, ...],
    constants: int = 0,
    contracted: bool = False,
) -> Program | None:
    """Return a kernel's program for tensors that `may_be_built` allows, by the length of their rows, if there is one.

    `wide` says for each input whether it has one element for each element of a row.
    """
    dtype, device = inputs[0].dtype, inputs[0].device
    if row == 1 or any([x.dtype is not dtype or x.device != device for x in inputs]):  # noqa: C419
        return None
    try:
        key = (identity_of(kernel), wide, contracted, constants)
    except Unidentified:
        return None

    def functions() -> Functions:
        return functions_of(kernel, wide, results, constants)._replace(contracted=contracted)

    return program_for(key, inputs, functions, row, lambda: _may_start(key, row))


def _may_start(key: Hashable, row: int) -> bool:
    """Return whether to build a kernel for rows of a length, and count the lengths."""
    if (key, row) not in _KNOWN:
        if _LENGTHS[key] == _MOST_LENGTHS:
            return False
        _LENGTHS[key] += 1
        _KNOWN.add((key, row))
    return True
