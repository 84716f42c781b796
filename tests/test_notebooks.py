"""The notebooks: the first one runs, all are kept as they were executed, and each has a page in the documentation."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return _module(ROOT / "tools" / "notebooks.py")


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return _module(ROOT / "docs" / "notebook_pages.py")


def _check(name: str, tool: Path = ROOT / "tools" / "notebooks.py") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(tool), "check", name]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_quick_start_runs_without_an_error_or_a_warning() -> None:
    done = _check("quick_start")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 notebooks passed" in done.stdout


@pytest.mark.parametrize(
    ("source", "told"), [("import warnings; warnings.warn('look here')", "look here"), ("1 / 0", "ZeroDivisionError")]
)
def test_a_warning_or_an_error_of_a_cell_fails(tmp_path: Path, source: str, told: str) -> None:
    for folder in ("tools", "notebooks"):
        (tmp_path / folder).mkdir()
    copied = tmp_path / "tools" / "notebooks.py"
    copied.write_text((ROOT / "tools" / "notebooks.py").read_text())
    kept = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbformat.write(kept, tmp_path / "notebooks" / "wrong.ipynb")
    done = _check("wrong", copied)
    assert done.returncode == 1
    assert told in done.stdout
    assert "0 of 1 notebooks passed" in done.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_was_executed(tool: ModuleType, path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert tool.complaints(notebook) == []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum(len(cell.outputs) for cell in code) >= 5
    assert path.read_text() == nbformat.writes(tool.tidied(notebook)) + "\n"
    assert path.stat().st_size < 300_000
    assert not re.search(r"/home/|/root/|/tmp/|site-packages", path.read_text())


def test_bars_of_progress_and_the_machine_are_not_kept(tool: ModuleType) -> None:
    new = nbformat.v4
    bar = new.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "50%"})
    printed = new.new_output("stream", name="stdout", text="printed")
    cell = new.new_code_cell("f()", outputs=[bar, printed], metadata={"scrolled": True})
    tidied = tool.tidied(
        new.new_notebook(cells=[cell], metadata={"language_info": {"name": "python", "version": "3.11.7"}})
    )
    assert tidied.cells[0].outputs == [printed]
    assert tidied.cells[0].metadata == {}
    assert "version" not in nbformat.writes(tidied)


def test_a_notebook_becomes_a_page(pages: ModuleType, tmp_path: Path) -> None:
    new = nbformat.v4
    text = "# A title\n\nSee [this](../docs/propagate.md#x), [that](other.ipynb) and [the net](https://e.org/a.ipynb)."
    outputs = [
        new.new_output("stream", name="stdout", text="printed\n"),
        new.new_output("display_data", {"image/png": "aGVsbG8=", "text/plain": "<Figure>"}),
        new.new_output("execute_result", {"text/html": "<style a>\nx\n</style>\n <b>table</b>", "text/plain": "table"}),
        new.new_output("execute_result", {"text/plain": "shown"}),
    ]
    cells = [new.new_markdown_cell(text), new.new_code_cell("1 + 1", outputs=outputs)]
    nbformat.write(new.new_notebook(cells=cells), tmp_path / "mine.ipynb")
    page, figures = pages.page(tmp_path / "mine.ipynb")
    assert figures == {"mine-1.png": b"hello"}
    assert "[this](../propagate.md#x), [that](other.md) and [the net](https://e.org/a.ipynb)" in page
    assert "````python\n1 + 1\n````" in page
    assert "printed\n````" in page
    assert "shown\n````" in page
    assert "![Figure: A title](mine-1.png)" in page
    assert '[Download this notebook](mine.ipynb){ download="mine.ipynb" }' in page
    assert "<b>table</b>" in page
    assert "style" not in page


def test_every_notebook_is_in_the_gallery_and_in_the_navigation() -> None:
    gallery, navigation = ((ROOT / name).read_text() for name in ("docs/notebooks.md", "mkdocs.yml"))
    assert len(NOTEBOOKS) == 7
    for path in NOTEBOOKS:
        assert f"(notebooks/{path.stem}.md)" in gallery
        assert f"notebooks/{path.stem}.md" in navigation
