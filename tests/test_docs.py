"""The documentation that is made from the code, or drawn by hand after it, says what the code says."""

import importlib.util
import re
from pathlib import Path
from typing import Any

from momentprop.dispatch import Kind, kinds, table
from tests.test_imports import LAYERS

DOCS = Path(__file__).parents[1] / "docs"


def _hooks() -> Any:
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figure_of_the_architecture_shows_the_layers() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    shown = re.findall(r'<text x="280"[^>]*>(.*?)</text>', page)
    assert shown == ["momentprop_experiments", *(" · ".join(layer) for layer in reversed(LAYERS))]


def test_the_rules_page_explains_every_kind_as_the_code_does() -> None:
    page = (DOCS / "rules.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \*(\w+)\* \|", page, re.M) == [str(kind) for kind in Kind]
    assert kinds.__doc__ is not None
    for line in re.findall(r"^\| \*\w+\* \|.*", kinds.__doc__, re.M):
        assert line in page


def test_the_rules_page_shows_kinds_and_what_serves_a_row() -> None:
    lines = _hooks().rules_table(row for row in table() if row.op in ("tanh", "softmax")).splitlines()
    assert lines[0] == "| operation | on | kind | rule | what it computes | error | source |"
    assert any(line.startswith("| `tanh` | `Normal` | *elementwise* | by kind |") for line in lines)
    assert any(line.startswith("| `softmax` | `Normal` | *mixing* | written |") for line in lines)
