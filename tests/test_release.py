"""What a release says of itself agrees everywhere, and every documented install command is one that is tried."""

import importlib.util
import json
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PYPROJECT, EXPERIMENTS = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for folder in (".", "experiments")
)
VERSION = PYPROJECT["version"]
NOT_TRIED = {"tensorboard", "triton", "lightning"}  # packages of others, which messages name


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_check", ROOT / "tools" / "release_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _citation() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_version_of_pyproject_is_the_one_that_all_others_follow() -> None:
    released = re.search(r"^## \[(\d[^\]]*)\] - (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert released is not None
    assert released[1] == VERSION
    assert EXPERIMENTS["version"] == VERSION
    assert f"momentprop=={VERSION}" in EXPERIMENTS["dependencies"]
    assert (_citation()["version"], str(_citation()["date-released"])) == (VERSION, released[2])


def test_both_packages_say_the_same_of_themselves() -> None:
    for field in ("requires-python", "license", "license-files", "authors"):
        assert EXPERIMENTS[field] == PYPROJECT[field]
    assert (ROOT / "experiments" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    (oldest,) = re.findall(r">=(3\.\d+)$", PYPROJECT["requires-python"])
    assert f"Programming Language :: Python :: {oldest}" in PYPROJECT["classifiers"]


def test_the_citation_names_the_software_and_the_paper() -> None:
    """`make release-check` validates the file against the schema."""
    citation = _citation()
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert (citation["title"], citation["license"]) == (PYPROJECT["name"], PYPROJECT["license"])
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Shekhovtsov", "Flach", "Busta"]
    assert paper["identifiers"] == [{"type": "other", "value": "arXiv:1803.10590"}]


def test_every_documented_install_command_is_tried_by_the_release_check(tool: ModuleType) -> None:
    tried = {*tool.ASKED_FOR, "onnx onnxscript", *tool.IN_A_CLONE, *NOT_TRIED}
    commands = {command for path in _texts() for command in _install_commands(path.read_text(encoding="utf-8"))}
    assert {".", ". ./experiments", "momentprop[cli]"} <= commands
    assert {command for command in commands if ".whl" not in command} <= tried


class _Trial:
    """A Python for which pip reports these packages, or fails."""

    version = (3, 99)

    def __init__(self, folder: Path, names: list[str] | None) -> None:
        self.folder, self.names = folder, names

    def pip(self, *arguments: str) -> str:
        if self.names is None:
            raise subprocess.CalledProcessError(1, "pip", stderr="a warning\nERROR: No matching distribution for torch")
        items = [{"metadata": {"name": name}} for name in self.names]
        Path(arguments[arguments.index("--report") + 1]).write_text(json.dumps({"install": items}), encoding="utf-8")
        return ""


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["torch", "numpy"], None),
        (["torch", "nvidia-cublas", "cuda-toolkit"], "it brings 2 packages of CUDA"),
        (None, "pip finds no torch for it: ERROR: No matching distribution for torch"),
    ],
)
def test_a_python_without_torch_is_told_with_the_reason(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str] | None, reason: str | None
) -> None:
    monkeypatch.setattr(tool, "_wheels", lambda: (Path("a.whl"), Path("b.whl")))
    found = tool._why_no_torch(_Trial(tmp_path, names))
    assert found is None if reason is None else found.startswith(reason)


def _texts() -> list[Path]:
    pages = [path for folder in (".", "docs", "docs/reference", "experiments") for path in (ROOT / folder).glob("*.md")]
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "experiments" / "src").rglob("*.py")]
    return [*pages, *sources, *(ROOT / "examples").glob("*.py")]


def _install_commands(text: str) -> list[str]:
    """What follows `pip install` up to the end of the code.

    >>> _install_commands('run `pip install "momentprop[cli]"`, or pip install . ./experiments   # in a clone')
    ['momentprop[cli]', '. ./experiments']
    """
    found = re.findall(r"pip install ([^`#\n]*[^`#\n\s])", text.replace("\\", ""))
    return [command.replace('"', "").strip("() ") for command in found]
