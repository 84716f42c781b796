"""The documentation that is made from the code, or drawn by hand after it, says what the code says."""

import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

from momentprop.dispatch import Kind, kinds, table
from tests.test_imports import LAYERS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def _hooks() -> Any:
    return _module("hooks")


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
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


def test_a_copied_example_is_its_code_alone() -> None:
    content = '<div class="language-pycon highlight"><pre><span></span><code>{}</code></pre></div>'
    shown = '<span class="gp">&gt;&gt;&gt; </span>print(&quot;a&quot;)\n<span class="go">a</span>\n'
    assert 'data-copy="print(&quot;a&quot;)"' in _hooks().on_page_content(content.format(shown))
    assert "pycon" in _hooks().on_page_markdown("```python\n>>> 1\n1\n```")
    assert "pycon" not in _hooks().on_page_markdown("```python\nimport torch\n```")


def test_every_table_of_measured_numbers_is_on_a_page_and_made() -> None:
    measured = _module("measured")
    pages = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    named = re.findall(r"<!-- measured: ([\w-]+) -->", "".join(pages.values()))
    assert set(named) == set(measured.TABLES)
    for page in pages.values():
        assert "<!-- measured" not in measured.on_page_markdown(page)


def test_the_cheapest_method_meets_the_demand_and_draws_compete() -> None:
    measured = _module("measured")
    correlation = json.loads((ROOT / "results/paper/correlation.json").read_text(encoding="utf-8"))["cases"]
    for name in measured.CASES:
        for most in measured.DEMANDS:
            method, price = measured._cheapest(name, most)
            assert price <= max(2 / (math.pi * most**2), 0.5 / most**2)
            if method != "draws":
                found = correlation[name]["methods"][method]
                assert found["eps_mean"][0] <= most
                assert found["rms"][0] <= most


def test_the_search_of_the_site_needs_no_network() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "- assets/iframe-worker.js" in settings  # without it, the plugin `offline` names a network address
    assert (DOCS / "assets" / "iframe-worker.js").is_file()


def test_every_figure_of_the_documentation_has_a_command() -> None:
    figures = (ROOT / "tools" / "figures.py").read_text(encoding="utf-8")
    drawn = sorted(path.stem for path in (DOCS / "figures").glob("*.png"))
    assert drawn == sorted(re.findall(r'^    "([\w-]+)": \(\(', figures, re.M))
