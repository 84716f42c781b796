"""When kernels are built, who is told, and that no failure stops anyone."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import AsTensors, Normal
from momentprop.codegen import programs
from momentprop.codegen.programs import Functions, program_for
from momentprop.torch_compat.tracing import traced
from tests.codegen.conftest import needs_compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("building")]
X = torch.linspace(-1, 1, 9)


def program(factor):
    """The program of a scaled sum, if it is built."""

    def forward(x, y):
        return [(x + y) * factor]

    def backward(x, y, grad, other):
        return [grad * factor, grad * factor]

    return program_for(("scaled sum", factor), [X, X], lambda: Functions(forward, backward, ([True] * 2, [True] * 4)))


def reasons():
    return list(programs.failures().values())


def test_a_program_is_built_in_the_background_and_kept(folder):
    assert program(2.0) is None
    programs.wait()
    built = program(2.0)
    assert torch.equal(built.forward(X, X)[0], 4 * X)
    assert torch.equal(built.backward(X, X, X, X)[1], 2 * X)
    assert program(2.0) is built
    programs.forget()
    assert program(2.0) is not None  # found on disk, at once
    assert len(list(folder.iterdir())) == 1


def test_a_program_is_built_at_once_where_that_is_wanted():
    programs.set_mode("wait")
    assert program(2.0) is not None


def test_inside_at_once_programs_are_built_at_once_and_one_line_says_so(caplog):
    assert program(2.0) is None
    with programs.at_once():
        assert program(2.0) is not None  # it waits for what the background has begun
        assert program(3.0) is not None
        assert program(5.0) is not None
    assert programs.mode() == "auto"
    assert len([line for line in caplog.messages if "first calls on this machine take some seconds" in line]) == 1
    assert program(7.0) is None


def test_at_once_builds_nothing_where_nothing_is_to_be_built():
    programs.set_mode("eager")
    with programs.at_once():
        assert programs.mode() == "eager"


def test_programs_differ_by_type_and_number_of_tensors():
    programs.set_mode("wait")
    asked = []

    def functions():
        asked.append(None)
        return Functions(lambda *xs: [xs[0]], lambda *xs: [xs[0]], ([True] * 1, [True] * 1))

    for inputs in ([X], [X], [X, X], [X.double()]):
        program_for("first", inputs, functions)
    assert len(asked) == 3


def test_no_kernel_is_built_where_none_is_wanted(folder):
    programs.set_mode("eager")
    F.relu(Normal(X, 1.0))
    assert not folder.exists()


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="unknown way 'off' to build kernels: choose one of 'auto', 'wait', 'eager'"):
        programs.set_mode("off")


def test_the_first_build_is_told_once(folder, caplog):
    program(2.0)
    program(3.0)
    assert len(caplog.messages) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert f"kept in {folder}" in caplog.messages[0]
    assert "`momentprop kernels build`" in caplog.messages[0]


def test_nothing_is_told_of_what_is_on_disk_or_waited_for(caplog):
    programs.set_mode("wait")
    program(2.0)
    programs.forget()
    programs.set_mode("auto")
    program(2.0)
    assert not caplog.messages


def test_a_compiler_that_fails_is_told_once_and_the_formula_runs(monkeypatch, caplog):
    monkeypatch.setenv("CC", "false")
    assert program(2.0) is None
    assert program(3.0) is None
    programs.wait()
    assert program(2.0) is None
    assert [message.partition(":")[0] for message in caplog.messages[1:]] == [
        "a kernel could not be built, and its formula runs instead, more slowly"
    ]
    assert len(reasons()) == 2
    assert "false` ended with status 1" in reasons()[0]


@pytest.mark.parametrize("mode", ["auto", "wait"])
def test_a_folder_that_cannot_be_written_stops_nobody(mode, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MOMENTPROP_CACHE", str(tmp_path / "file" / "kernels"))
    programs.set_mode(mode)
    assert program(2.0) is None
    programs.wait()
    assert "Not a directory" in reasons()[0]


def test_a_home_that_nobody_knows_stops_nobody(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MOMENTPROP_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", home)
    assert program(2.0) is None
    assert reasons() == ["Could not determine home directory."]


def test_only_the_kernels_of_this_thread_are_noted():
    programs.set_mode("wait")
    with programs.noting() as slots:
        program(2.0)
        program(2.0)
        thread = threading.Thread(target=program, args=(3.0,))
        thread.start()
        thread.join()
    program(4.0)
    assert [slot.found for slot in slots] == [False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_builds_what_its_parent_was_about_to_build():
    """The worker of the parent is busy, and the child has none: it must neither wait for that one nor hang."""
    hold = threading.Event()
    programs._WORKER.do(hold.wait)
    program(2.0)
    child = os.fork()
    if not child:
        program(2.0)
        programs.wait()
        os._exit(0 if program(2.0) is not None else 1)
    ended, end = (0, 0), time.monotonic() + 30
    while not ended[0] and time.monotonic() < end:
        ended = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    hold.set()
    programs.wait()
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
    assert ended == (child, 0)
    assert program(2.0) is not None


_SHORT = """
import time, torch
from momentprop import Normal
from momentprop.codegen import processes
torch.nn.functional.silu(Normal(torch.ones(2), 1.0))
while not processes._STATE.running:
    time.sleep(0.001)
"""


def test_a_process_that_ends_during_a_build_leaves_nothing_and_says_nothing(folder):
    environment = {**os.environ, "MOMENTPROP_KERNELS": "auto"}
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _SHORT], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("kernels are being built in the background")
    assert list(folder.iterdir()) == []
    assert time.monotonic() - start < 30


def test_a_trace_records_the_formula_although_there_is_a_program():
    programs.set_mode("wait")
    model, x = AsTensors(nn.ReLU()), (X, X.exp())
    model(*x)
    recorded = traced(model, x)
    other = (-X, X.cosh())
    torch.testing.assert_close(recorded(*other), model(*other))
