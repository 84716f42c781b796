"""Runs compilers, with a time limit and never beyond the end of this process."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

LONGEST = 300.0
"""Seconds after which a compiler counts as hung."""


class CompilerError(Exception):
    """A compiler failed; the message says why."""


class _State:
    """The running compilers, and whether no more may start."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[str]] = set()
        self.lock = threading.Lock()
        self.closed = False


_STATE = _State()


def run(command: Sequence[str]) -> None:
    """Run a compiler to its end, or raise a `CompilerError`."""
    with _STATE.lock:
        if _STATE.closed:
            raise CompilerError("the process is ending")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that its children can be ended with it
        )
        _STATE.running.add(process)
    try:
        _, said = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        raise CompilerError(f"`{command[0]}` did not finish within {LONGEST:.0f} seconds") from None
    finally:
        _STATE.running.discard(process)
        _end(process)
    if process.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        reason = next((line for line in lines if "error" in line), lines[0] if lines else "without a message")
        raise CompilerError(f"`{command[0]}` ended with status {process.returncode}: {reason.strip()}")


def close() -> None:
    """End all running compilers, and let none start."""
    with _STATE.lock:
        _STATE.closed = True
        for process in list(_STATE.running):
            _kill(process)


def closed() -> bool:
    """Return whether this process is ending."""
    return _STATE.closed


def forget() -> None:
    """In a forked child, forget the parent's compilers."""
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
