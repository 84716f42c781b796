"""Builds printed Triton kernels and launches them. Triton comes with torch's builds for CUDA, and not otherwise."""

import functools
import hashlib
import importlib.util
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.codegen import c_library
from momentprop.codegen.formula import Formula, Unprintable
from momentprop.codegen.printed_triton import HEADER, function_in_triton

Call = Callable[..., list[Tensor]]
_BLOCK = 1024
_LONGEST_ROW = 4096


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is there."""
    return importlib.util.find_spec("triton") is not None


def prepared(formulas: Sequence[Formula], device: torch.device) -> tuple[bool, Callable[[], list[Call]]]:
    """Return that formulas have not been built, and a function that builds them and launches each once."""
    if not has_triton():
        raise Unprintable("Triton was not found")
    if any(formula.dtype is not torch.float32 or _has_doubles(formula) for formula in formulas):
        raise Unprintable("only float32 is printed for GPUs")
    if any(formula.row is not None and formula.row > _LONGEST_ROW for formula in formulas):
        raise Unprintable("the rows are too long")
    source = HEADER + "".join(function_in_triton(f"f{k}", formula) for k, formula in enumerate(formulas))

    def finish() -> list[Call]:
        module = _module(source)
        calls = [_callable(getattr(module, f"f{k}"), formula) for k, formula in enumerate(formulas)]
        for call, formula in zip(calls, formulas, strict=True):
            for count in (_BLOCK, 8) if formula.row is None else (8 * formula.row,):  # with and without a rest
                call(*(torch.ones(count, device=device) for _ in formula.inputs))
        torch.cuda.synchronize(device)
        return calls

    return False, finish


def _has_doubles(formula: Formula) -> bool:
    return any(step.dtype is torch.float64 for step in formula.steps)


def _module(source: str) -> types.ModuleType:
    """Return a source as a module; Triton reads it from its file."""
    name = f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:24]}"
    place = c_library.folder() / f"{name}.py"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_suffix(".partial")
        partial.write_text(source)
        partial.replace(place)
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _callable(function: Any, formula: Formula) -> Call:
    outputs, row = range(len(formula.outputs)), formula.row
    if row is None:

        def call(*inputs: Tensor) -> list[Tensor]:
            made = [torch.empty_like(inputs[0]) for _ in outputs]
            count = inputs[0].numel()
            function[(-(-count // _BLOCK),)](*inputs, *made, count, BLOCK=_BLOCK, EVEN=count % _BLOCK == 0)
            return made

        return call
    block = 1 << (row - 1).bit_length()
    rows = max(1, 1024 // block)
    warps = 4 if block * rows <= 2048 else 8

    def call_rows(*inputs: Tensor) -> list[Tensor]:
        made = [torch.empty_like(inputs[0]) for _ in outputs]
        count = inputs[0].numel() // row
        function[(-(-count // rows),)](*inputs, *made, count, ROWS=rows, BLOCK=block, num_warps=warps)
        return made

    return call_rows
