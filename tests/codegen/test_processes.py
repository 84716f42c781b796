"""Compilers that fail, hang, or run when the process ends."""

import os
import threading
import time
from pathlib import Path

import pytest

from momentprop.codegen import processes
from momentprop.codegen.processes import CompilerError, run

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")


@pytest.fixture
def state(monkeypatch):
    fresh = processes._State()
    monkeypatch.setattr(processes, "_STATE", fresh)
    return fresh


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return ") Z " not in Path(f"/proc/{process}/stat").read_text()  # a zombie waits for its parent only


def test_the_first_error_is_the_reason():
    said = "kernel.c: In function\nkernel.c:3: error: no such thing\nmore"
    with pytest.raises(CompilerError, match=r"^`sh` ended with status 3: kernel.c:3: error: no such thing$"):
        run(["sh", "-c", f"echo '{said}' >&2; exit 3"])
    with pytest.raises(CompilerError, match="without a message"):
        run(["sh", "-c", "exit 1"])
    run(["sh", "-c", "echo warning >&2"])


def test_a_compiler_that_hangs_is_ended_with_all_that_it_has_started(monkeypatch, tmp_path, state):
    monkeypatch.setattr(processes, "LONGEST", 0.3)
    with pytest.raises(CompilerError, match="`sh` did not finish within 0 seconds"):
        run(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"])
    time.sleep(0.1)
    assert not is_alive(int((tmp_path / "child").read_text()))
    assert not state.running


def test_closing_ends_what_runs_and_lets_nothing_start(state):
    failed = []

    def compile():
        try:
            run(["sleep", "60"])
        except CompilerError as error:
            failed.append(error)

    thread = threading.Thread(target=compile)
    thread.start()
    while thread.is_alive() and not state.running:
        time.sleep(0.01)
    processes.close()
    thread.join(5)
    assert failed
    with pytest.raises(CompilerError, match="the process is ending"):
        run(["true"])
    processes.forget()  # as in a forked child, which goes on
    run(["true"])
