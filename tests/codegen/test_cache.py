"""The folder of built kernels."""

import pytest

from momentprop.codegen import cache

NAMES = ["0123456789abcdef01234567.so", "kernel_0123456789abcdef01234567.py"]


@pytest.fixture
def filled(folder):
    folder.mkdir()
    for name in [*NAMES, "notes.txt", "mine.so"]:
        (folder / name).write_text("12345")
    (folder / f"{cache.ROOM}left").mkdir()
    (folder / "__pycache__").mkdir()
    return folder


def test_only_kernels_count(filled):
    assert [path.name for path in cache.files()] == NAMES
    assert cache.size() == 10


def test_what_is_not_ours_is_not_cleared(filled):
    assert cache.clear() == 2
    assert sorted(path.name for path in filled.iterdir()) == ["mine.so", "notes.txt"]


def test_a_folder_that_is_not_there_is_empty(folder):
    assert (cache.files(), cache.size(), cache.clear()) == ([], 0, 0)


def test_the_folder_is_named_or_lies_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MOMENTPROP_CACHE", "~/here")
    assert cache.folder() == tmp_path / "here"
    monkeypatch.delenv("MOMENTPROP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "momentprop" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == tmp_path / ".cache" / "momentprop" / "kernels"
