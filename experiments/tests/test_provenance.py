"""The record of where numbers come from."""

import shutil
import subprocess

import pytest
import torch

from momentprop_experiments import provenance


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with one file of source, in which the module seems to lie."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "source.py"))
    for name, given in {"NAME": "a", "EMAIL": "a@b"}.items():
        for kind in ("AUTHOR", "COMMITTER"):
            monkeypatch.setenv(f"GIT_{kind}_{name}", given)
    (tmp_path / "source.py").write_text("x = 1\n")
    (tmp_path / "results.json").write_text("1\n")
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture(autouse=True)
def forget():
    provenance.commit.cache_clear()
    yield
    provenance.commit.cache_clear()


def test_the_record_says_what_ran_and_how_long():
    made = provenance.start()("cpu")
    assert made["device"].startswith("cpu (")
    assert f"{torch.get_num_threads()} threads" in made["device"]
    assert made["versions"]["torch"] == torch.__version__
    assert 0 <= made["seconds"] < 60


def test_the_commit_is_that_of_the_start_and_new_results_are_no_change_of_it(clone):
    made = provenance.start()
    (clone / "results.json").write_text("2\n")
    (clone / "source.py").write_text("x = 2\n")
    first = made("cpu")["commit"]
    assert len(first) == 40
    provenance.commit.cache_clear()
    assert provenance.commit() == f"{first}, with changes"
    (clone / "source.py").write_text("x = 1\n")
    provenance.commit.cache_clear()
    assert provenance.commit() == first


def test_there_is_no_commit_outside_a_clone(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "source.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.start()("cpu")["commit"] is None
