"""The library knows nothing of the experiments: no module imports them, not even lazily."""

import ast
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[1] / "src" / "momentprop"


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("package", sorted(path.name for path in LIBRARY.iterdir() if path.suffix != ".typed"))
def test_no_module_imports_the_experiments(package):
    place = LIBRARY / package
    for path in place.rglob("*.py") if place.is_dir() else [place]:
        assert not [name for name in _imported(path) if name.startswith("momentprop_experiments")], path


def test_calibration_does_not_import_training():
    for path in (LIBRARY / "calibration").rglob("*.py"):
        assert not [name for name in _imported(path) if name.startswith("momentprop.training")], path
