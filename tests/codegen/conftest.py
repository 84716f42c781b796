"""Kernels that tests build lie in a folder of their own, and nobody remembers them afterwards."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from momentprop.codegen import c_library, programs
from momentprop.codegen.formula import Formula, record

needs_compiler = pytest.mark.skipif(c_library.compiler() is None, reason="no C compiler")


def recorded(
    function: Callable[..., Sequence[Tensor]],
    inputs: int = 1,
    dtype: torch.dtype = torch.float32,
    row: int | None = None,
) -> Formula:
    """Return the formula of a function of so many tensors."""
    return record(function, [True] * inputs, dtype, row)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The empty folder of built kernels."""
    here = tmp_path / "kernels"
    monkeypatch.setenv("MOMENTPROP_CACHE", str(here))
    return here


@pytest.fixture
def building(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Let kernels be built in the background, as by default, by a process that has told nothing yet."""
    before = programs.mode()
    monkeypatch.setattr(programs, "_TOLD", set())
    programs.forget()
    programs.set_mode("auto")
    yield
    programs.wait()
    programs.set_mode(before)
    programs.forget()
