"""Kernels built by a compiler: how, when, which, and all of them ahead of time.

>>> from momentprop import built_kernels
>>> before = built_kernels.mode()
>>> built_kernels.set_mode("eager")  # build none: every kernel runs by its formula
>>> built_kernels.mode()
'eager'
>>> built_kernels.set_mode(before)
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F

from momentprop.codegen import c_library, triton_launch
from momentprop.codegen.cache import clear, files, folder, size
from momentprop.codegen.programs import Slot, at_once, failures, forget, mode, noting, set_mode, wait
from momentprop.dispatch import table
from momentprop.dispatch.kinds import Elementwise
from momentprop.dispatch.rule_table import operation_named
from momentprop.errors import UserError
from momentprop.values import Fitted, Logistic, Normal

__all__ = [
    "BuildError",
    "Built",
    "at_once",
    "build",
    "clear",
    "failures",
    "files",
    "folder",
    "mode",
    "set_mode",
    "size",
    "wait",
]

T = TypeVar("T")

_TYPES = (Normal, Logistic, Fitted)
_ARGUMENTS: dict[str, tuple[Any, ...]] = {  # for the operations that need some, each of which asks for a kernel
    "clamp": (0.0, 1.0),
    "clamp_max": (1.0,),
    "clamp_min": (0.0,),
    "heaviside": (torch.tensor(0.5),),
    "pow": (3,),  # a square is a separate operation
    "prelu": (torch.tensor([0.25]),),
    "threshold": (0.0, 0.0),
}
_WINDOWS = {"max_pool1d": (2, 3), "max_pool2d": (2, 3)}
Use = Callable[[torch.dtype, torch.device], object]
"""A call that needs one kernel, for a type and a device."""


class Built(NamedTuple):
    """What `build` has done: how many kernels it built and found, and why others run as formulas."""

    built: int
    found: int
    formulas: dict[str, str]
    seconds: float


class BuildError(UserError):
    """Nothing can be built on this machine; the message says what is missing."""


def build(
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    device: torch.device | str = "cpu",
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Built:
    """Build the kernels of all elementwise operations and of max pooling, forward and backward.

    Those that take constants, such as the slope of a leaky ReLU, are built for torch's defaults; others are built when
    first used.

    Args:
        dtypes: The types to build for; half precision is computed in float32.
        device: Where the kernels will run, `"cpu"` or `"cuda"`.
        jobs: How many compilers run in parallel.
        progress: Called with the number of kernels done, and the total.
    """
    device = torch.device(device)
    require(device)
    uses = [(name, use, dtype) for name, use in _uses() for dtype in dtypes]
    before, start = mode(), time.perf_counter()
    forget()
    set_mode("wait")
    try:
        found = _run([partial(_slots, use, dtype, device) for _, use, dtype in uses], jobs, progress)
    finally:
        set_mode(before)
    named = [(name, slot) for (name, *_), slots in zip(uses, found, strict=True) for slot in slots]
    programs = [slot for _, slot in named if slot.failed is None]
    formulas = {name: slot.failed for name, slot in named if slot.failed is not None}
    there = sum(slot.found for slot in programs)
    return Built(len(programs) - there, there, formulas, time.perf_counter() - start)


def require(device: torch.device) -> None:
    """Raise `BuildError` if there is no compiler for a device."""
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise BuildError("torch finds no GPU: build for the CPU, with `momentprop kernels build --device cpu`")
        if not triton_launch.has_triton():
            raise BuildError("Triton is not installed: run `pip install triton`")
    elif device.type != "cpu":
        raise BuildError(f"kernels can be built for 'cpu' and 'cuda' only; on {device.type!r} formulas run instead")
    elif c_library.compiler() is None:
        raise BuildError(f"no C compiler was found: {c_library.INSTALL}")


def _run(jobs: Sequence[Callable[[], T]], threads: int, progress: Callable[[int, int], None]) -> list[T]:
    """Return the results of some jobs, run by several threads."""
    pool = ThreadPoolExecutor(threads)
    try:
        futures = [pool.submit(job) for job in jobs]
        for done, _ in enumerate(as_completed(futures), 1):
            progress(done, len(jobs))
        return [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)


def _slots(use: Use, dtype: torch.dtype, device: torch.device) -> list[Slot]:
    with torch.no_grad(), noting() as slots:
        use(dtype, device)
    return slots


def _uses() -> Iterator[tuple[str, Use]]:
    """Yield a use of every kernel, with a name; some share one."""
    for row in table():
        operation = operation_named(row.op)
        if isinstance(operation, Elementwise) and row.on in _TYPES:
            yield f"{row.op} of {row.on.__name__}", _elementwise(operation, row.on)
    for name, sizes in _WINDOWS.items():
        for each in sizes:
            yield f"{name} of {each}", _pooling(name, each)


def _elementwise(operation: Elementwise, on: Any) -> Use:
    def use(dtype: torch.dtype, device: torch.device) -> object:
        given = [x.to(device, dtype) if isinstance(x, torch.Tensor) else x for x in _ARGUMENTS.get(operation.name, ())]
        value = on(torch.ones(2, dtype=dtype, device=device), 1e-4)
        return value.transformed(operation.makers[on](value, *given))

    return use


def _pooling(name: str, size: int) -> Use:
    def use(dtype: torch.dtype, device: torch.device) -> object:
        shape = [1, 1, *[size] * int(name[-2])]
        return getattr(F, name)(Normal(torch.ones(shape, dtype=dtype, device=device), 1.0), size)

    return use
