"""Builds printed Triton kernels and launches them. Triton comes only with torch's CUDA builds."""

import functools
import hashlib
import importlib.util
import types
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentprop.codegen import cache
from momentprop.codegen.agreement import Check
from momentprop.codegen.formula import Formula, Unprintable
from momentprop.codegen.layout import Into, empty_rows, repetitions
from momentprop.codegen.printed_triton import HEADER, function_in_triton
from momentprop.files import write_file
from momentprop.torch_compat.streams import stream_of

Call = Callable[..., Any]
_SHORT = 128  # steps of a formula; a longer one's values do not fit into the registers of large blocks
_BLOCK = {True: 1024, False: 256}  # elements for each program, of short formulas and of long ones
_ROWS = 128  # elements of rows for each program: one for each thread
_LONGEST_ROW = 4096
_KNOWN = "3.6."  # the version of Triton whose launcher we know


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def prepared(formulas: Sequence[Formula], device: torch.device) -> tuple[bool, Callable[[Check], list[Call]]]:
    """Return whether formulas were built before, and a function that builds, checks and launches them."""
    if not has_triton():
        raise Unprintable("Triton was not found")
    if any(formula.dtype is not torch.float32 or _has_doubles(formula) for formula in formulas):
        raise Unprintable("kernels for GPUs exist for float32 only")
    if any(formula.row is not None and formula.row > _LONGEST_ROW for formula in formulas):
        raise Unprintable("the rows are too long")
    source = HEADER + "".join(function_in_triton(f"f{k}", formula) for k, formula in enumerate(formulas))
    place = _place_of(source)

    def finish(check: Check) -> list[Call]:
        module = _module(source, place)
        calls = [_callable(getattr(module, f"f{k}"), formula) for k, formula in enumerate(formulas)]
        check(calls)
        check(calls)  # the first launch is Triton's own, later ones are direct
        for call, formula in zip(calls, formulas, strict=True):
            for count in (_block(formula), 8):  # with and without a remainder
                shapes = [
                    (count,) if formula.row is None else (8, formula.row if wide else 1) for wide in formula.inputs
                ]
                call(*(torch.ones(shape, device=device) for shape in shapes))
        torch.cuda.synchronize(device)
        return calls

    return place.exists(), finish


def _has_doubles(formula: Formula) -> bool:
    return any(step.dtype is torch.float64 for step in formula.steps)


def _place_of(source: str) -> Path:
    return cache.folder() / f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:24]}.py"


def _module(source: str, place: Path) -> types.ModuleType:
    """Return a source as a module; Triton reads it from its file."""
    content = source.encode()
    if not place.exists() or place.read_bytes() != content:
        write_file(place, content)
    name = place.stem
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def direct(kernel: Any, device: int) -> Call | None:
    """Return a function of a number of programs, addresses and numbers that launches a kernel which Triton compiled.

    Triton's own bookkeeping takes longer than a launch. Where its version, or the kernel, needs it, it stays.
    """
    if not hasattr(type(kernel), "__getitem__"):
        return None
    run = kernel.run
    if not metadata.version("triton").startswith(_KNOWN) or run.global_scratch_size or run.profile_scratch_size:
        return lambda programs, *given: kernel[(programs, 1, 1)](*given)
    launch, current, function = run.launch, stream_of(), kernel.function
    rest = (run.launch_cooperative_grid, run.launch_pdl, None, None, kernel.packed_metadata, None, None, None)
    return lambda programs, *given: launch(programs, 1, 1, current(device), function, *rest, *given)


def _block(formula: Formula) -> int:
    return _BLOCK[len(formula.steps) <= _SHORT]


def _callable(function: Any, formula: Formula) -> Call:
    """Return a function of tensors that launches a kernel on their device."""
    row = formula.row
    block = _block(formula) if row is None else 1 << (row - 1).bit_length()
    rows = 1 if row is None else max(1, _ROWS // block)
    wide = [] if row is None else [formula.kind(number)[1] for number in formula.outputs]
    warps = 4 if row is None else min(16, max(4, block // 64))
    several = torch.cuda.device_count() > 1
    ready: dict[Any, Any] = {}  # launches without asking Triton again which kernel it is

    def of_elements(*inputs: Tensor) -> list[Tensor]:
        made = [torch.empty_like(inputs[0]) for _ in formula.outputs]
        count = inputs[0].numel()
        return launched(inputs, made, count, -(-count // block), (block, count % block == 0))

    def of_rows(*inputs: Tensor, into: Into | None = None) -> list[Tensor]:
        assert row is not None
        if into is None:
            made, count = empty_rows(wide, row, inputs[0]), inputs[0].shape[:-1].numel()
            repeated = repetitions(*[x.shape for x in inputs])
        else:
            made, (count, repeated) = into
        return launched(inputs, made, count, -(-count // rows), (*repeated, rows, block))

    def launched(
        inputs: Sequence[Tensor], made: list[Tensor], count: int, programs: int, constants: Any
    ) -> list[Tensor]:
        tensors, here = (*inputs, *made), made[0].device.index
        if several and here != torch.cuda.current_device():
            with torch.cuda.device(here):
                function[(programs, 1, 1)](*tensors, count, *constants, num_warps=warps)
            return made
        pointers = [tensor.data_ptr() for tensor in tensors]
        # a kernel is compiled for 32-bit counts, and for which addresses are divisible by 16
        usual = count < 2**31
        key = here, constants, tuple([pointer % 16 > 0 for pointer in pointers])
        launch = ready.get(key) if usual else None
        if launch is not None:
            launch(programs, *pointers, count, *constants)
            return made
        kernel = function[(programs, 1, 1)](*tensors, count, *constants, num_warps=warps)
        if usual:
            ready[key] = direct(kernel, here)
        return made

    return of_elements if row is None else of_rows
