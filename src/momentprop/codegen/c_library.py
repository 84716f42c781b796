"""Builds printed C with the machine's own compiler, keeps it on disk, and calls it."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentprop.codegen.formula import Formula, Unprintable
from momentprop.codegen.layout import empty_rows, rows_sharing
from momentprop.codegen.printed_c import FAST, HEADER, function_in_c

_FLAGS = tuple("-O3 -march=native -fno-math-errno -fno-trapping-math -fno-tree-pre -fopenmp -fPIC -w".split())
# what is partly redundant is left: moving it makes branches, and loops with branches are not vectorized
_FEW = 1 << 13  # elements below which one thread is faster than several
Call = Callable[..., list[Tensor]]


def compiler() -> str | None:
    """Return the path of the C compiler, or None where there is none."""
    return next((found for name in (os.environ.get("CC", "cc"), "gcc") if (found := shutil.which(name))), None)


def folder() -> Path:
    """Return where built kernels lie: `MOMENTPROP_CACHE`, or a folder in the user's cache."""
    given = os.environ.get("MOMENTPROP_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "momentprop" / "kernels"


def prepared(formulas: Sequence[Formula], device: torch.device) -> tuple[bool, Callable[[], list[Call]]]:
    """Return whether formulas have been built already, and a function that builds them if not, and loads them."""
    source = source_of(formulas)
    place = place_of(source)
    if compiler() is None and not place.exists():
        raise Unprintable("no C compiler was found")

    def finish() -> list[Call]:
        if not place.exists():
            build(source, place)
        return load(place, formulas)

    return place.exists(), finish


def source_of(formulas: Sequence[Formula]) -> str:
    """Return the C source of some formulas, as functions `f0`, `f1`, …"""
    return HEADER + FAST + "".join(function_in_c(f"f{k}", formula) for k, formula in enumerate(formulas))


def place_of(source: str) -> Path:
    """Return where the library of a source lies, by a hash of all that decides its content."""
    key = hashlib.sha256("\n".join((source, *_FLAGS, torch.__version__, _machine())).encode()).hexdigest()
    return folder() / f"{key[:24]}.so"


def build(source: str, place: Path) -> None:
    """Compile a source into a library; whoever builds the same at the same time makes the same file."""
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler was found")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as room:
        code, built = Path(room) / "kernel.c", Path(room) / "kernel.so"
        code.write_text(source)
        # torch has loaded its own OpenMP, whose threads are idle in between: link none of ours
        command = [found, *_FLAGS, "-c", str(code), "-o", f"{code}.o"]
        subprocess.run(command, check=True, capture_output=True)
        command = [found, "-shared", f"{code}.o", "-o", str(built), "-lmvec", "-lm"]
        if subprocess.run(command, capture_output=True).returncode:
            subprocess.run([part for part in command if part != "-lmvec"], check=True, capture_output=True)
        built.replace(place)


def load(place: Path, formulas: Sequence[Formula]) -> list[Call]:
    """Return the functions of a library: of input tensors that lie alike, to the outputs."""
    library = ctypes.CDLL(str(place))
    return [_callable(library[f"f{k}"], formula) for k, formula in enumerate(formulas)]


def _callable(function: Any, formula: Formula) -> Call:
    inputs, outputs, row = range(len(formula.inputs)), range(len(formula.outputs)), formula.row
    function.argtypes = [ctypes.c_void_p] * (len(inputs) + len(outputs)) + [ctypes.c_int64, ctypes.c_int]
    function.restype = None
    if row is not None:
        function.argtypes += [ctypes.c_int64] * len(inputs)

    def of_elements(*inputs: Tensor) -> list[Tensor]:
        made = [torch.empty_like(inputs[0]) for _ in outputs]
        count = inputs[0].numel()
        function(*[x.data_ptr() for x in inputs], *[y.data_ptr() for y in made], count, _threads(count))
        return made

    def of_rows(*inputs: Tensor) -> list[Tensor]:
        made = empty_rows(formula, inputs)
        count = made[0].shape[:-1].numel()
        pointers = [*[x.data_ptr() for x in inputs], *[y.data_ptr() for y in made]]
        function(*pointers, count, _threads(count * (row or 1)), *map(rows_sharing, inputs))
        return made

    return of_elements if row is None else of_rows


def _threads(elements: int) -> int:
    return 1 if elements < _FEW else torch.get_num_threads()


def _machine() -> str:
    """Return what tells processors apart: a library for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
