"""Compares a built kernel with its formula once, before anyone uses it: compilers and machines differ."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from momentprop.codegen.formula import Formula
from momentprop.codegen.processes import CompilerError

_ROWS = 24
_TOLERANCE = 1e-3  # of the largest element: far above rounding, far below a real fault

Check = Callable[[Sequence[Callable[..., Sequence[Tensor]]]], None]


def check_of(
    functions: Sequence[Callable[..., Sequence[Tensor]]], formulas: Sequence[Formula], device: torch.device
) -> Check:
    """Return a function that raises an error unless built functions agree with their formulas."""

    def check(built: Sequence[Callable[..., Sequence[Tensor]]]) -> None:
        for call, function, formula in zip(built, functions, formulas, strict=True):
            given = _numbers(formula, device)
            with torch.inference_mode(False), torch.enable_grad():
                wanted = function(*(x.clone().requires_grad_() for x in given))
                found = call(*given)
            for ours, theirs in zip(found, wanted, strict=True):
                error = (ours - theirs.detach()).abs().max()
                if not error <= _TOLERANCE * (theirs.detach().abs().max() + _TOLERANCE):
                    raise CompilerError("the built kernel differs from its formula: the compiler may be broken")

    return check


def _numbers(formula: Formula, device: torch.device) -> list[Tensor]:
    """Return positive numbers, which suit means, variances and weights."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False):
        return [
            torch.rand(shape, generator=generator, dtype=formula.dtype, device="cpu").mul_(0.9).add_(0.1).to(device)
            for shape in _shapes(formula)
        ]


def _shapes(formula: Formula) -> list[tuple[int, ...]]:
    if formula.row is None:
        return [(_ROWS, 8)] * len(formula.inputs)
    if formula.contraction is None:
        return [(_ROWS, formula.row if wide else 1) for wide in formula.inputs]
    queries, keys, left = 10, 5, 3
    others = [(2, queries, 1, formula.row) if wide else (2, queries, left, 1) for wide in formula.inputs[1:]]
    return [(2, queries, keys), (2, keys, left), (2, keys, formula.row), *others]
