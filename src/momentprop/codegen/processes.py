"""Runs compilers: never longer than is reasonable, and never beyond the end of this process."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

LONGEST = 300.0
"""Seconds after which a compiler is taken to hang."""


class CompilerError(Exception):
    """A compiler did not do its work; the message says why."""


class _State:
    """The compilers that run, and whether no more may start."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[str]] = set()
        self.lock = threading.Lock()
        self.closed = False


_STATE = _State()


def run(command: Sequence[str]) -> None:
    """Run a compiler to its end, or raise a `CompilerError`."""
    with _STATE.lock:
        if _STATE.closed:
            raise CompilerError("this process ends")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that what it starts can be ended with it
        )
        _STATE.running.add(process)
    try:
        _, said = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        raise CompilerError(f"`{command[0]}` has not ended after {LONGEST:.0f} seconds") from None
    finally:
        _STATE.running.discard(process)
        _end(process)
    if process.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        reason = next((line for line in lines if "error" in line), lines[0] if lines else "it says nothing")
        raise CompilerError(f"`{command[0]}` ended with status {process.returncode}: {reason.strip()}")


def close() -> None:
    """End all compilers that run, and let none start."""
    with _STATE.lock:
        _STATE.closed = True
        for process in list(_STATE.running):
            _kill(process)


def closed() -> bool:
    """Return whether this process ends."""
    return _STATE.closed


def forget() -> None:
    """Forget the compilers of a parent, in its forked child."""
    global _STATE
    _STATE = _State()


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        _kill(process)
        process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _kill(process: "subprocess.Popen[str]") -> None:
    try:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
