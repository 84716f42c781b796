"""Builds printed C with the machine's own compiler, keeps it on disk, and calls it."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentprop.codegen import cache, processes
from momentprop.codegen.agreement import Check
from momentprop.codegen.c_language import FAST, HEADER, TYPES
from momentprop.codegen.formula import Formula, Unprintable
from momentprop.codegen.layout import Into, empty_rows, repetitions
from momentprop.codegen.printed_c import function_in_c
from momentprop.codegen.printed_contraction import PRODUCT, room_of_thread
from momentprop.codegen.printed_rows import room_of_row

_FLAGS = tuple("-O3 -march=native -fno-math-errno -fno-trapping-math -fno-tree-pre -fopenmp -fPIC -w".split())
# keep partial redundancies: moving them makes branches, and loops with branches are not vectorized
if platform.machine().lower() in ("x86_64", "amd64"):
    _FLAGS += ("-mprefer-vector-width=512",)  # where the CPU has them: long loops are worth the lower clock
_FEW = 1 << 13  # elements below which one thread is faster than several
Call = Callable[..., list[Tensor]]

INSTALL = "install gcc, for example with `apt install gcc`, or name a compiler in the environment variable CC"
"""What to do on a machine without a compiler."""


def compiler() -> str | None:
    """Return the path of the C compiler, or None where there is none."""
    return next((found for name in (os.environ.get("CC", "cc"), "gcc") if (found := shutil.which(name))), None)


def prepared(formulas: Sequence[Formula], device: torch.device) -> tuple[bool, Callable[[Check], list[Call]]]:
    """Return whether formulas are built already, and a function that loads them.

    If not, that function builds and checks them first.
    """
    source = source_of(formulas)
    place = place_of(source)
    found = is_whole(place)
    if compiler() is None and not found:
        raise Unprintable(f"no C compiler was found: {INSTALL}")

    def finish(check: Check) -> list[Call]:
        if is_whole(place):  # it may be built by now
            return load(place, formulas)
        build(source, place)
        calls = load(place, formulas)
        try:
            check(calls)
        except Exception:
            place.unlink(missing_ok=True)
            raise
        return calls

    return found, finish


def source_of(formulas: Sequence[Formula]) -> str:
    """Return the C source of some formulas, as functions `f0`, `f1` and so on."""
    contracted = formulas[0].contraction is not None
    product = f"#define KIND {TYPES[formulas[0].dtype]}\n{PRODUCT}" if contracted else ""
    return HEADER + FAST + product + "".join(function_in_c(f"f{k}", formula) for k, formula in enumerate(formulas))


def place_of(source: str) -> Path:
    """Return the path of a source's library, by a hash of all that decides its content."""
    key = hashlib.sha256("\n".join((source, *_FLAGS, torch.__version__, _machine())).encode()).hexdigest()
    return cache.folder() / f"{key[:24]}.so"


def build(source: str, place: Path) -> None:
    """Compile a source into a library; concurrent builds of one source make the same file."""
    found = compiler()
    if found is None:
        raise processes.CompilerError(f"no C compiler was found: {INSTALL}")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=cache.ROOM) as room:
        code, built = Path(room) / "kernel.c", Path(room) / "kernel.so"
        code.write_text(source)
        # torch has loaded its own OpenMP, whose threads are idle meanwhile: do not link another
        processes.run([found, *_FLAGS, "-c", str(code), "-o", f"{code}.o"])
        command = [found, "-shared", f"{code}.o", "-o", str(built), "-lmvec", "-lm"]
        try:
            processes.run(command)
        except processes.CompilerError:  # not every machine has vectors of `libmvec`
            processes.run([part for part in command if part != "-lmvec"])
        _seal(built)
        built.replace(place)


def _seal(library: Path) -> None:
    """Append the hash of its content to a library; loaders ignore it."""
    content = library.read_bytes()
    library.write_bytes(content + hashlib.sha256(content).digest())


def is_whole(library: Path) -> bool:
    """Return whether a library is complete: half a library would crash the process."""
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(content[:-32]).digest() == content[-32:]


def load(place: Path, formulas: Sequence[Formula]) -> list[Call]:
    """Return a library's functions, from input tensors with the same layout to the outputs."""
    library = ctypes.CDLL(str(place))
    return [
        (_callable if formula.contraction is None else _contraction)(library[f"f{k}"], formula)
        for k, formula in enumerate(formulas)
    ]


def _callable(function: Any, formula: Formula) -> Call:
    inputs, outputs, row = range(len(formula.inputs)), range(len(formula.outputs)), formula.row
    function.argtypes = [ctypes.c_void_p] * (len(inputs) + len(outputs)) + [ctypes.c_int64, ctypes.c_int]
    function.restype = None
    if row is not None:
        function.argtypes += [ctypes.c_void_p] + [ctypes.c_int64] * (2 * len(inputs))
        room = room_of_row(formula)
        wide = [formula.kind(number)[1] for number in formula.outputs]

    def of_elements(*inputs: Tensor) -> list[Tensor]:
        made = [torch.empty_like(inputs[0]) for _ in outputs]
        count = inputs[0].numel()
        function(*[x.data_ptr() for x in (*inputs, *made)], count, _threads(count))
        return made

    def of_rows(*inputs: Tensor, into: Into | None = None) -> list[Tensor]:
        assert row is not None
        if into is None:
            made, count = empty_rows(wide, row, inputs[0]), inputs[0].shape[:-1].numel()
            repeated = repetitions(*[x.shape for x in inputs])
        else:
            made, (count, repeated) = into
        pointers = [x.data_ptr() for x in (*inputs, *made)]
        threads = _threads(count * row)
        scratch = torch.empty(room * threads, dtype=torch.uint8) if room else None
        address = None if scratch is None else scratch.data_ptr()
        function(*pointers, count, threads, address, *repeated)
        return made

    return of_elements if row is None else of_rows


def _contraction(function: Any, formula: Formula) -> Call:
    """Return a function of factors, and of tensors with a row or a number for each pair of a query and a left feature.

    A tensor that all pairs of a query share has size 1 in place of the left features.
    """
    back, others, row = formula.contraction == "pullback", len(formula.inputs) - 1, formula.row or 1
    outputs = formula.outputs[int(back) :]
    pointers = 3 + others + 3 * back + len(outputs)
    function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * 4 + [ctypes.c_void_p, ctypes.c_int64]
    function.argtypes += [ctypes.c_int] + [ctypes.c_int64] * others
    function.restype = None

    def of_factors(*inputs: Tensor) -> list[Tensor]:
        weights, left = inputs[:2]
        lanes, (queries, keys), features = weights.shape[:-2], weights.shape[-2:], left.shape[-1]
        if back:  # gradients by other inputs add up
            made = [torch.empty_like(weights), torch.empty_like(left), torch.zeros_like(inputs[2])]
            made += [torch.zeros_like(x) for x in inputs[3 : 3 + len(outputs)]]
        else:
            sizes = [row if formula.kind(number)[1] else 1 for number in outputs]
            made = [weights.new_empty(*lanes, queries, features, size) for size in sizes]
        threads = _threads(weights.numel() * features)
        size = room_of_thread(queries, keys, row, back)
        scratch = weights.new_empty(threads * size)
        sharing = [features // x.shape[-2] for x in inputs[3:]]
        counts = [lanes.numel(), queries, keys, features, scratch.data_ptr(), size, threads, *sharing]
        function(*[x.data_ptr() for x in (*inputs, *made)], *counts)
        return made

    return of_factors


def _threads(elements: int) -> int:
    return 1 if elements < _FEW else torch.get_num_threads()


@functools.cache
def _machine() -> str:
    """Return what tells machines apart: one machine's library can fail on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {platform.libc_ver()} {flags}"
