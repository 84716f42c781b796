"""Which kernels have been built for which tensors; those that have not are built behind the scenes."""

import os
import queue
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from momentprop.codegen import c_library, triton_launch
from momentprop.codegen.formula import Unprintable, record

Mode = Literal["auto", "wait", "eager"]
"""*auto* builds in the background, *wait* at once, and *eager* runs the formulas themselves."""

Call = Callable[..., list[Tensor]]

_MODES: tuple[str, ...] = get_args(Mode)


class Functions(NamedTuple):
    """What to record of a kernel, and of which tensors each is a function: whether they are wide."""

    forward: Callable[..., Sequence[Tensor]]
    backward: Callable[..., Sequence[Tensor]]
    inputs: tuple[Sequence[bool], Sequence[bool]]
    takes_certain: bool = False  # forward takes the plain function of the mean as its last tensor


class Program(NamedTuple):
    """A built kernel: its outputs, and its pullback."""

    forward: Call
    backward: Call
    takes_certain: bool


class _Slot:
    """The place of one program: empty while it is being built, and for good where that is impossible."""

    program: Program | None = None
    failed: str | None = None


_SLOTS: dict[Hashable, _Slot] = {}
_LOCK = threading.Lock()
_QUEUE: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
_STATE: dict[str, Any] = {"mode": os.environ.get("MOMENTPROP_KERNELS", "auto"), "worker": None, "told": False}


def mode() -> str:
    """Return how kernels are built: *auto*, *wait* or *eager*."""
    return str(_STATE["mode"])


def set_mode(new: Mode) -> None:
    """Choose how kernels are built.

    *auto*, the default, builds each kernel in the background when it is first used; until then its formula runs.
    *wait* builds it at once, so that results do not depend on when a build ends. *eager* builds and uses none. The
    environment variable `MOMENTPROP_KERNELS` sets the same for a whole process.
    """
    if new not in _MODES:
        raise ValueError(f"unknown way {new!r} to build kernels: choose one of {', '.join(map(repr, _MODES))}")
    _STATE["mode"] = new


def program_for(
    key: Hashable, inputs: Sequence[Tensor], functions: Callable[[], Functions], row: int | None = None
) -> Program | None:
    """Return the program of a kernel for tensors like these, or None where the formula has to serve.

    `key` tells kernels apart, and `functions` gives what to record if it must be built.
    """
    first = inputs[0]
    key = (key, len(inputs), first.dtype, first.device.type, row)
    slot = _SLOTS.get(key)
    return (_started(key, functions, first, row) if slot is None else slot).program


def _started(key: Hashable, functions: Callable[[], Functions], first: Tensor, row: int | None) -> _Slot:
    """Return a new slot, and start to fill it."""
    with _LOCK:
        if key in _SLOTS:
            return _SLOTS[key]
        slot = _SLOTS[key] = _Slot()
    prepare = c_library.prepared if first.is_cpu else triton_launch.prepared if first.is_cuda else None
    try:
        if prepare is None:
            raise Unprintable(f"no way to build for {first.device.type}")
        wanted = functions()
        formulas = [
            record(function, given, first.dtype, row) for function, given in zip(wanted[:2], wanted.inputs, strict=True)
        ]
        is_built, finish = prepare(formulas, first.device)
    except Unprintable as error:
        slot.failed = str(error)
        return slot

    def fill() -> None:
        try:
            forward, backward = finish()
            slot.program = Program(forward, backward, wanted.takes_certain)
        except Exception as error:  # a compiler that does not work must not stop anyone
            slot.failed = str(error) or type(error).__name__
            _tell_once(f"a kernel could not be built; its formula runs instead, more slowly: {error}")

    if is_built or _STATE["mode"] == "wait":
        fill()
    else:
        _enqueue(fill)
    return slot


def _enqueue(fill: Callable[[], None]) -> None:
    """Let the one worker fill a slot."""
    with _LOCK:
        if _STATE["worker"] is None:
            _STATE["worker"] = threading.Thread(target=_work, name="momentprop-kernels", daemon=True)
            _STATE["worker"].start()
    _QUEUE.put(fill)


def _work() -> None:
    while True:
        _QUEUE.get()()


def wait() -> None:
    """Wait until all kernels that were asked for have been built."""
    done = threading.Event()
    _enqueue(done.set)
    done.wait()


def failures() -> dict[Hashable, str]:
    """Return the kernels that run by their formulas, with the reasons."""
    return {key: slot.failed for key, slot in _SLOTS.items() if slot.failed is not None}


def _tell_once(message: str) -> None:
    if not _STATE["told"]:
        _STATE["told"] = True
        warnings.warn(message, RuntimeWarning, stacklevel=2)
