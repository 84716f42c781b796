"""Which kernels are built for which tensors; the others are built in the background."""

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
"""*auto* builds in the background, *wait* builds immediately, and *eager* runs the formulas themselves."""

Call = Callable[..., list[Tensor]]

_MODES: tuple[str, ...] = get_args(Mode)
_LAST_SECONDS = 60.0  # for a build still running when the interpreter ends: a Triton build would crash if it went on
_LOGGER = logging.getLogger("momentprop")


class Functions(NamedTuple):
    """What to record of a kernel, and for each function which of its tensors are wide."""

    forward: Callable[..., Sequence[Tensor]]
    backward: Callable[..., Sequence[Tensor]]
    inputs: tuple[Sequence[bool], Sequence[bool]]
    takes_certain: bool = False  # forward takes the plain function of the mean as its last tensor
    contracted: bool = False  # the first tensor is a contraction, which the program gets as its factors


class Program(NamedTuple):
    """A built kernel: its outputs, and its pullback."""

    forward: Call
    backward: Call
    takes_certain: bool


class Slot:
    """The place of one program: empty while it is being built, and forever if that is impossible."""

    program: Program | None = None
    failed: str | None = None
    found: bool = False  # found on disk, built by another process


_SLOTS: dict[Hashable, Slot] = {}
_LOCK = threading.Lock()
_WORKER = Worker()
_TOLD: set[str] = set()
_NOTES = threading.local()
STATE: dict[str, Mode] = {}  # the mode, and the one "before" where `at_once` has changed it


def mode() -> Mode:
    """Return how kernels are built: *auto*, *wait* or *eager*."""
    return STATE["mode"]


def set_mode(new: Mode) -> None:
    """Choose how kernels are built.

    *auto*, the default, builds each kernel in the background when it is first used; its formula runs until then. *wait*
    builds it immediately, so that results do not depend on when a build ends. *eager* builds and uses none. The
    environment variable `MOMENTPROP_KERNELS` sets the mode for a whole process.
    """
    if new not in _MODES:
        raise ValueError(f"unknown way {new!r} to build kernels: choose one of {', '.join(map(repr, _MODES))}")
    STATE["mode"] = new


set_mode(os.environ.get("MOMENTPROP_KERNELS") or "auto")  # type: ignore[arg-type]


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Inside, wait for kernels that would be built in the background, so that results do not depend on the timing.

    Training does this: a kernel and its formula round differently, and a resumed run must reach the same bits.
    """
    if mode() != "auto":
        yield
        return
    wait()
    STATE.update(mode="wait", before="auto")
    try:
        yield
    finally:
        set_mode(STATE.pop("before"))


def program_for(
    key: Hashable,
    inputs: Sequence[Tensor],
    functions: Callable[[], Functions],
    row: int | None = None,
    may_start: Callable[[], bool] = lambda: True,
) -> Program | None:
    """Return a kernel's program for tensors like these, or None where the formula must run.

    `key` tells kernels apart, `functions` returns what to record for a build, and `may_start` decides whether to build.
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
    """Return a new slot, and start filling it."""
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
        # Triton takes a second to start, even for a kernel built before
        if mode() == "wait" or (slot.found and first.is_cpu):
            if not slot.found and "before" in STATE:
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
        raise Unprintable(f"kernels cannot be built for {first.device.type!r}")
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
        except Exception as error:  # a broken compiler must not stop anyone
            _fail(slot, error)

    return found, fill


def _fail(slot: Slot, error: Exception) -> None:
    slot.failed = str(error) or type(error).__name__
    if not processes.closed():
        _tell_once(_FAILURE, slot.failed)


def wait() -> None:
    """Wait until all requested kernels are built."""
    _WORKER.wait()


def failures() -> dict[Hashable, str]:
    """Return the kernels that run by their formulas, with reasons."""
    return {key: slot.failed for key, slot in list(_SLOTS.items()) if slot.failed is not None}


def forget() -> None:
    """Forget all programs, including failed ones: the next use looks for each on disk or builds it again."""
    with _LOCK:
        _SLOTS.clear()


@contextlib.contextmanager
def noting() -> Iterator[list[Slot]]:
    """Inside, note the slots of all kernels that this thread requests first."""
    _NOTES.slots = []
    try:
        yield _NOTES.slots
    finally:
        del _NOTES.slots


_FIRST_USE = (
    "kernels are being built in the background and kept in %s; until they are ready, calls are slower. "
    "`momentprop kernels build` builds all of them ahead of time, MOMENTPROP_KERNELS=eager builds none, and "
    '`logging.getLogger("momentprop").setLevel("ERROR")` hides this message'
)
_WAITING = "kernels are being built and kept in %s, so that the first calls on this machine take some seconds"
_FAILURE = "a kernel could not be built, and its formula runs instead, more slowly: %s"


def _tell_once(message: str, what: object) -> None:
    """Log a message, unless this process has logged it before."""
    if message not in _TOLD:
        _TOLD.add(message)
        _LOGGER.warning(message, what)


def _at_exit() -> None:
    processes.close()
    _WORKER.close(_LAST_SECONDS)


def _in_child() -> None:
    """In a forked process, forget what only the parent has: its compilers, and the builds for its slots."""
    global _LOCK
    _LOCK = threading.Lock()
    processes.forget()
    for key in [key for key, slot in _SLOTS.items() if slot.program is None and slot.failed is None]:
        del _SLOTS[key]


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
