"""All kernels are built ahead of time, and what was done is reported."""

from pathlib import Path

import pytest
import torch

from momentprop import Logistic, Normal, built_kernels
from momentprop.codegen import c_library
from momentprop.dispatch import Kind, table

needs_compiler = pytest.mark.skipif(c_library.compiler() is None, reason="no C compiler")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty folder of kernels, and three uses to build for: two share a kernel, and one cannot be printed."""
    monkeypatch.setenv("MOMENTPROP_CACHE", str(tmp_path))
    names = ("heaviside of Fitted", "heaviside of Logistic", "softsign of Normal")
    uses = [use for use in built_kernels._uses() if use[0] in names]
    monkeypatch.setattr(built_kernels, "_uses", lambda: uses)
    yield tmp_path
    built_kernels.forget()


def test_every_elementwise_operation_and_max_pooling_have_a_use():
    names = [name for name, _ in built_kernels._uses()]
    rows = [row for row in table() if row.kind is Kind.ELEMENTWISE and row.on in (Normal, Logistic)]
    assert {f"{row.op} of {row.on.__name__}" for row in rows} < set(names)
    assert {"max_pool1d of 3", "max_pool2d of 2"} < set(names)


@needs_compiler
def test_what_is_built_is_counted_and_then_found(folder):
    steps = []
    built = built_kernels.build(jobs=2, progress=lambda *step: steps.append(step))
    assert (built.built, built.found, list(built.formulas)) == (1, 0, ["softsign of Normal"])
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert len(built_kernels.files()) == 1
    again = built_kernels.build()
    assert (again.built, again.found) == (0, 1)
    double = built_kernels.build([torch.float32, torch.float64])
    assert (double.built, double.found) == (1, 1)


@needs_compiler
def test_what_is_built_is_what_a_first_call_asks_for(folder):
    built_kernels.build()
    built_kernels.forget()
    before, found = built_kernels.mode(), built_kernels.files()
    built_kernels.set_mode("wait")
    try:
        torch.heaviside(Logistic(torch.ones(5), 0.1), torch.tensor(0.5))
        assert built_kernels.files() == found
        torch.square(Normal(torch.ones(5), 0.1))
    finally:
        built_kernels.set_mode(before)
    assert len(built_kernels.files()) == len(found) + 1


@needs_compiler
def test_the_way_to_build_is_as_before(folder):
    before = built_kernels.mode()
    built_kernels.set_mode("eager")
    built_kernels.build()
    assert built_kernels.mode() == "eager"
    built_kernels.set_mode(before)


def test_a_machine_on_which_nothing_can_be_built_is_refused(monkeypatch):
    monkeypatch.setattr(c_library, "compiler", lambda: None)
    with pytest.raises(built_kernels.BuildError, match="no C compiler was found: install gcc"):
        built_kernels.build()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(built_kernels.BuildError, match="torch finds no GPU"):
        built_kernels.build(device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(built_kernels.triton_launch, "has_triton", lambda: False)
    with pytest.raises(built_kernels.BuildError, match="Triton is not installed"):
        built_kernels.build(device="cuda")
    with pytest.raises(built_kernels.BuildError, match="'cpu' and 'cuda' only; on 'mps' formulas run"):
        built_kernels.build(device="mps")


def test_the_folder_is_cleared(folder):
    (folder / f"{'0' * 24}.so").touch()
    assert built_kernels.files() == [Path(folder / f"{'0' * 24}.so")]
    assert built_kernels.clear() == 1
    assert built_kernels.files() == []
