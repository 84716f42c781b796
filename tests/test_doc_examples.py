"""`tools/doc_examples.py` runs what can run with torch alone, and says what it leaves out."""

import doctest
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("doc_examples", ROOT / "tools" / "doc_examples.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["doc_examples"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


PAGE = """
>>> import math
>>> import no_such_package as extra
>>> x = extra.number()
>>> y = math.pi
>>> x + y
7
>>> print(f"{y:.2f}")
3.14
>>> from no_other.part import z
>>> def f():
...     return z
>>> x = 3
>>> x + 1
4
>>> f() + 1
5
"""


def test_what_needs_a_missing_package_is_skipped_and_named(tool, tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    page = tool.read(tmp_path / "page.md")
    assert [example.source for example in page.runs] == [
        *("import math\n", "y = math.pi\n", 'print(f"{y:.2f}")\n', "x = 3\n", "x + 1\n")
    ]
    extra, other = "no_such_package", "no_other"
    assert page.skips == [(3, extra), (4, extra), (6, extra), (10, other), (11, other), (16, other)]
    assert tool.run(page) == 0
    assert str(page) == ("page.md: 5 ran, 6 skipped for want of no_other, no_such_package (lines 3, 4, 6, 10, 11, 16)")


@pytest.mark.parametrize(
    "wrong",
    [">>> 1 + 1\n3\n", ">>> 1 / 0\n", ">>> import momentprop.nothing\n", ">>> import warnings; warnings.warn('')\n"],
)
def test_an_example_that_is_wrong_fails(tool, tmp_path, wrong, capsys):
    (tmp_path / "page.md").write_text(wrong)
    assert tool.run(tool.read(tmp_path / "page.md")) == 1
    assert "Failed example" in capsys.readouterr().out


def test_a_method_that_needs_a_missing_package_is_skipped(tool, tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(">>> figure = [].plot()\n>>> figure = figure + 1\n>>> 1 + 1\n2\n")
    monkeypatch.setitem(tool._METHODS, "plot", "no_such_package")
    page = tool.read(tmp_path / "page.md")
    assert page.skips == [(1, "no_such_package"), (2, "no_such_package")]
    assert len(page.runs) == 1


def test_the_flags_are_those_of_pytest(tool):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    flags = doctest.FAIL_FAST
    for name in settings["doctest_optionflags"]:
        flags |= getattr(doctest, name)
    assert flags == tool.FLAGS
    assert "--doctest-glob=*.md" in settings["addopts"]


def test_with_all_packages_no_example_of_the_documentation_is_skipped(tool):
    pages = [tool.read(path) for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    assert sum(len(page.runs) for page in pages) > 400
    assert [page for page in pages if page.skips] == []
