"""The public names: listed in `__all__`, documented in the reference, and kept in `tests/api.txt`."""

import importlib
import re
from types import ModuleType
from typing import Any

import pytest

from tests import api

PAGES = sorted(api.ROOT.glob("docs/**/*.md"))
BLOCKS = [found for page in PAGES for found in re.findall(r"^::: ([\w.]+)", page.read_text(encoding="utf-8"), re.M)]
MODULES = api.public_modules()
NAMES = api.public_names()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_lists_the_public_names_and_no_other(module: ModuleType) -> None:
    assert len(set(module.__all__)) == len(module.__all__)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
    if _only_gathers(module):
        public = {name for name, thing in vars(module).items() if name[0] != "_" and not isinstance(thing, ModuleType)}
        assert public == {name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)}


def _only_gathers(module: ModuleType) -> bool:
    """Whether a module is a package that only gathers the names of its parts."""
    own = [thing for thing in vars(module).values() if getattr(thing, "__module__", None) == module.__name__]
    return hasattr(module, "__path__") and not own and module.__name__ != "momentprop_experiments.networks"


def test_every_documented_name_is_public() -> None:
    assert BLOCKS
    assert [block for block in BLOCKS if block not in NAMES and block not in _whole()] == []
    assert sorted({block for block in BLOCKS if BLOCKS.count(block) > 1}) == []


def test_every_public_name_is_documented() -> None:
    """A block of the reference shows it under one of its names, or shows its whole module."""
    whole = _whole()
    shown = [thing for name, thing in NAMES.items() if name in BLOCKS or name.rpartition(".")[0] in whole]
    names = [name for name, thing in NAMES.items() if not isinstance(thing, ModuleType)]
    missing = [name for name in names if not any(NAMES[name] is other for other in shown)]
    assert not missing, f"write `::: NAME` for each of these into a page of the reference: {missing}"


def _whole() -> dict[str, ModuleType]:
    """The public modules with a block of their own."""
    return {module.__name__: module for module in MODULES if module.__name__ in BLOCKS}


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name, thing in NAMES.items() if callable(thing) and not thing.__doc__] == []


def test_a_star_import_brings_the_public_names() -> None:
    names: dict[str, Any] = {}
    exec("from momentprop import *", names)
    assert set(names) - {"__builtins__"} == set(importlib.import_module("momentprop").__all__)


def test_the_public_names_and_signatures_are_those_that_are_kept() -> None:
    kept = api.KEPT.read_text(encoding="utf-8").splitlines()
    assert list(api.lines()) == kept, "if the change is meant, run `python -m tests.api` and tell it in CHANGELOG.md"
