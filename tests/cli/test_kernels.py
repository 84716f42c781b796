"""`momentprop kernels`: what it prints, and how it ends."""

import re

import pytest

from momentprop import built_kernels, cli
from momentprop.codegen import c_library


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty folder of kernels, and two uses to build for."""
    monkeypatch.setenv("MOMENTPROP_CACHE", str(tmp_path))
    uses = [use for use in built_kernels._uses() if use[0] in ("square of Normal", "softsign of Normal")]
    monkeypatch.setattr(built_kernels, "_uses", lambda: uses)
    yield tmp_path
    built_kernels.forget()


@pytest.mark.skipif(c_library.compiler() is None, reason="no C compiler")
def test_kernels_are_built_listed_and_cleared(folder, capsys):
    assert cli.main(["kernels", "build", "--jobs", "1"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"1 kernel built in \d s, 0 were there already: 1 kernel, 0\.0 MB, in {folder}", first)
    assert second == "1 kernel not built; formulas run instead, for these reasons:"
    assert third == "  softsign of Normal  stack"
    assert cli.main(["kernels", "build", "--float64"]) == 0
    assert "1 kernel built in" in capsys.readouterr().out
    assert cli.main(["kernels", "list"]) == 0
    assert capsys.readouterr().out == f"2 kernels, 0.0 MB, in {folder}\n"
    assert cli.main(["kernels", "clear"]) == 0
    assert capsys.readouterr().out == f"2 kernels removed from {folder}\n"
    assert list(folder.iterdir()) == []


def test_without_a_compiler_one_sentence_says_what_to_do(folder, capsys, monkeypatch):
    monkeypatch.setattr(c_library, "compiler", lambda: None)
    assert cli.main(["kernels", "build"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"momentprop: no C compiler was found: {c_library.INSTALL}\n"


def test_a_compiler_that_builds_nothing_ends_with_status_1(folder, capsys, monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert cli.main(["kernels", "build"]) == 1
    assert "false` ended with status 1" in capsys.readouterr().out


def test_a_gpu_takes_no_float64(capsys):
    assert cli.main(["kernels", "build", "--device", "cuda", "--float64"]) == 2
    assert "leave out `--float64`" in capsys.readouterr().err


def test_kernels_without_a_sub_command_shows_its_help(capsys):
    assert cli.main(["kernels"]) == 0
    assert re.search(r"build .*\n  list .*\n  clear ", capsys.readouterr().out)
