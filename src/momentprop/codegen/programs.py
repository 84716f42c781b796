"""Which kernels have been built for which tensors; those that have not are built behind the scenes."""

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from momentprop.codegen import c_library, cache, processes, triton_launch
from momentprop.codegen.agreement import check_of
from momentprop.codegen.contraction import of_factors, pullback_of_factors
from momentprop.codegen.formula import Unprintable, record
from momentprop.codegen.worker import Worker

Mode = Literal["auto", "wait", "eager"]
"""*auto* builds in the background, *wait* at once, and *eager* runs the formulas themselves."""

Call = Callable[..., list[Tensor]]

_MODES: tuple[str, ...] = get_args(Mode)
_LAST_SECONDS = 60.0  # for a build that runs when the interpreter ends: one by Triton would crash if it went on
_LOGGER = logging.getLogger("momentprop")


class Functions(NamedTuple):
    """What to record of a kernel, and of which tensors each is a function: whether they are wide."""

    forward: Callable[..., Sequence[Tensor]]
    backward: Callable[..., Sequence[Tensor]]
    inputs: tuple[Sequence[bool], Sequence[bool]]
    takes_certain: bool = False  # forward takes the plain function of the mean as its last tensor
    contracted: bool = False  # the first tensor is a contraction, which the program is given as its factors


class Program(NamedTuple):
    """A built kernel: its outputs, and its pullback."""

    forward: Call
    backward: Call
    takes_certain: bool


class Slot:
    """The place of one program: empty while it is being built, and for good where that is impossible."""

    program: Program | None = None
    failed: str | None = None
    found: bool = False  # on disk, where another process has built it


_SLOTS: dict[Hashable, Slot] = {}
_LOCK = threading.Lock()
_WORKER = Worker()
_TOLD: set[str] = set()
_NOTES = threading.local()
_STATE: dict[str, Mode] = {}  # the mode, and that of "before" where `at_once` has changed it


def mode() -> Mode:
    """Return how kernels are built: *auto*, *wait* or *eager*."""
    return _STATE["mode"]


def set_mode(new: Mode) -> None:
    """Choose how kernels are built.

    *auto*, the default, builds each kernel in the background when it is first used; until then its formula runs.
    *wait* builds it at once, so that results do not depend on when a build ends. *eager* builds and uses none. The
    environment variable `MOMENTPROP_KERNELS` sets the same for a whole process.
    """
    if new not in _MODES:
        raise ValueError(f"unknown way {new!r} to build kernels: choose one of {', '.join(map(repr, _MODES))}")
    _STATE["mode"] = new


set_mode(os.environ.get("MOMENTPROP_KERNELS") or "auto")  # type: ignore[arg-type]


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Inside, wait for kernels that would be built in the background, so that results do not depend on when that ends.

    Training does so: a kernel and its formula round differently, and a run that is resumed must go on to the same bits.
    """
    if mode() != "auto":
        yield
        return
    wait()
    _STATE.update(mode="wait", before="auto")
    try:
        yield
    finally:
        set_mode(_STATE.pop("before"))


def program_for(
    key: Hashable,
    inputs: Sequence[Tensor],
    functions: Callable[[], Functions],
    row: int | None = None,
    may_start: Callable[[], bool] = lambda: True,
) -> Program | None:
    """Return the program of a kernel for tensors like these, or None where the formula has to serve.

    `key` tells kernels apart, and `functions` gives what to record if it must be built, which is asked `may_start`.
    """
    first = inputs[0]
    key = (key, len(inputs), first.dtype, first.device.type, row)
    slot = _SLOTS.get(key)
    if slot is None:
        if not may_start():
            return None
        slot = _started(key, functions, first, row)
    return slot.program


def _started(key: Hashable, functions: Callable[[], Functions], first: Tensor, row: int | None) -> Slot:
    """Return a new slot, and start to fill it."""
    with _LOCK:
        if key in _SLOTS:
            return _SLOTS[key]
        slot = _SLOTS[key] = Slot()
    getattr(_NOTES, "slots", []).append(slot)
    try:
        slot.found, fill = _prepared(slot, functions(), first, row)
    except Unprintable as error:
        slot.failed = str(error)
    except Exception as error:  # such as a folder that cannot be read
        _fail(slot, error)
    else:
        # Triton takes a second to start, also where it has built a kernel before
        if mode() == "wait" or (slot.found and first.is_cpu):
            if not slot.found and "before" in _STATE:
                _tell_once(_WAITING, cache.folder())
            fill()
        else:
            if not slot.found:
                _tell_once(_FIRST_USE, cache.folder())
            _WORKER.do(fill)
    return slot


def _prepared(slot: Slot, wanted: Functions, first: Tensor, row: int | None) -> tuple[bool, Callable[[], None]]:
    """Return whether a kernel is on disk, and a function that fills its slot."""
    prepare = c_library.prepared if first.is_cpu else triton_launch.prepared if first.is_cuda else None
    if prepare is None:
        raise Unprintable(f"no way to build for {first.device.type}")
    formulas = [
        record(function, given, first.dtype, row) for function, given in zip(wanted[:2], wanted.inputs, strict=True)
    ]
    functions: Sequence[Callable[..., Sequence[Tensor]]] = wanted[:2]
    if wanted.contracted:
        formulas = [formulas[0]._replace(contraction="product"), formulas[1]._replace(contraction="pullback")]
        functions = [of_factors(wanted.forward), pullback_of_factors(wanted.backward)]
    found, finish = prepare(formulas, first.device)
    check = check_of(functions, formulas, first.device)

    def fill() -> None:
        try:
            forward, backward = finish(check)
            slot.program = Program(forward, backward, wanted.takes_certain)
        except Exception as error:  # a compiler that does not work must not stop anyone
            _fail(slot, error)

    return found, fill


def _fail(slot: Slot, error: Exception) -> None:
    slot.failed = str(error) or type(error).__name__
    if not processes.closed():
        _tell_once(_FAILURE, slot.failed)


def wait() -> None:
    """Wait until all kernels that were asked for have been built."""
    _WORKER.wait()


def failures() -> dict[Hashable, str]:
    """Return the kernels that run by their formulas, with the reasons."""
    return {key: slot.failed for key, slot in list(_SLOTS.items()) if slot.failed is not None}


def forget() -> None:
    """Forget all programs, those that failed too: at its next use each is looked for on disk, or built again."""
    with _LOCK:
        _SLOTS.clear()


@contextlib.contextmanager
def noting() -> Iterator[list[Slot]]:
    """Inside, note the slots of all kernels that this thread is the first to ask for."""
    _NOTES.slots = []
    try:
        yield _NOTES.slots
    finally:
        del _NOTES.slots


_FIRST_USE = (
    "kernels are being built in the background and kept in %s; until then results come more slowly. "
    "`momentprop kernels build` builds all ahead of time, MOMENTPROP_KERNELS=eager none, and "
    '`logging.getLogger("momentprop").setLevel("ERROR")` silences this'
)
_WAITING = "kernels are being built and kept in %s, so that the first calls on this machine take some seconds"
_FAILURE = "a kernel could not be built, and its formula runs instead, more slowly: %s"


def _tell_once(message: str, what: object) -> None:
    """Log a message, unless this process has told it before."""
    if message not in _TOLD:
        _TOLD.add(message)
        _LOGGER.warning(message, what)


def _at_exit() -> None:
    processes.close()
    _WORKER.close(_LAST_SECONDS)


def _in_child() -> None:
    """Forget what only the parent of a forked process has: its compilers, and who was to fill the slots."""
    global _LOCK
    _LOCK = threading.Lock()
    processes.forget()
    for key in [key for key, slot in _SLOTS.items() if slot.program is None and slot.failed is None]:
        del _SLOTS[key]


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
