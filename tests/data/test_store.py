"""Stored files: leftovers, full disks, and damage that is noticed."""

import resource
from contextlib import contextmanager

import pytest
import safetensors.torch
from safetensors import SafetensorError

from momentprop import data
from momentprop.data import library, store
from tests.data.fetching import assert_complete, assert_nothing_stored
from tests.tiny_data import UNPACKED

# Leftovers and full disks


def test_leftovers_of_killed_processes_are_removed(server, use, tmp_path):
    use(server.address)
    folder = tmp_path / "tiny"
    (folder / f"{store.TEMPORARY}folder" / "inner").mkdir(parents=True)
    (folder / f"{store.TEMPORARY}file").write_bytes(b"half of a split")
    data.get("tiny", tmp_path)
    assert_complete(tmp_path)


@contextmanager
def largest_file(size):
    """Let every file that would become larger fail to be written, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_full_while_downloading_is_the_systems_error(server, use, tmp_path):
    use(server.address)
    with largest_file(20_000), pytest.raises(OSError, match="File too large"):
        data.get("tiny", tmp_path)
    assert_nothing_stored(tmp_path)
    data.get("tiny", tmp_path)
    assert_complete(tmp_path)


def test_a_disk_full_while_storing_is_the_systems_error(server, use, tmp_path):
    use(server.address)
    with largest_file(len(UNPACKED["train-images-idx3-ubyte"])), pytest.raises(OSError, match="File too large"):
        data.get("tiny", tmp_path)
    assert_nothing_stored(tmp_path)
    data.get("tiny", tmp_path)
    assert_complete(tmp_path)


def test_an_older_safetensors_reports_a_full_disk_in_the_same_way(server, use, tmp_path, monkeypatch):
    use(server.address)

    def fail(*_):
        raise SafetensorError("no space left")

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(OSError, match=r"cannot write `.*train\.safetensors`: no space left"):
        data.get("tiny", tmp_path)
    assert_nothing_stored(tmp_path)


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(server, use, tmp_path, monkeypatch):
    use(server.address)

    def fail(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(store, "_flush_to_disk", fail)
        with pytest.raises(OSError, match="Input/output error"):
            data.get("tiny", tmp_path)
    assert_nothing_stored(tmp_path)


def test_a_root_that_is_no_folder_is_the_systems_error(use, tmp_path):
    use()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        data.get("tiny", tmp_path / "file")


# Stored files that change afterwards


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)


def swap_the_splits(path):
    path.write_bytes(path.with_name("test.safetensors").read_bytes())


DAMAGES = {
    flip_a_byte: "its content does not have the known SHA-256",
    swap_the_splits: "its content does not have the known SHA-256",
    lambda path: path.write_bytes(path.read_bytes()[:-1]): "it is not a complete safetensors file",
    lambda path: path.write_bytes(path.read_bytes() + b"x"): "it is not a complete safetensors file",
    lambda path: path.write_bytes(b""): "it is not a complete safetensors file",
    lambda path: path.write_text("something else entirely"): "it is not a complete safetensors file",
}


@pytest.mark.parametrize(("damage", "why"), DAMAGES.items())
def test_a_stored_file_that_is_damaged_is_noticed_and_fetched_again(damage, why, server, use, tmp_path, capsys):
    use(server.address)
    data.get("tiny", tmp_path)
    path = tmp_path / "tiny" / "train.safetensors"
    damage(path)
    with pytest.raises(data.DataError) as raised:
        data.load("tiny", tmp_path)
    assert str(raised.value).startswith(f"`{path}` is damaged: {why}")
    assert str(raised.value).endswith(f"; run `momentprop data get tiny --root {tmp_path}` to get it again")
    capsys.readouterr()
    data.get("tiny", tmp_path)
    assert capsys.readouterr().err.startswith(f"`{path}` is damaged: {why}")
    assert_complete(tmp_path)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_data_set_that_lacks_a_split_is_not_there(split, server, use, tmp_path):
    use(server.address)
    data.get("tiny", tmp_path)
    (tmp_path / "tiny" / f"{split}.safetensors").unlink()
    assert library.size("tiny", tmp_path) is None
    with pytest.raises(data.DataError, match=f"tiny is not in `{tmp_path}`: run `momentprop data get tiny --root"):
        data.load("tiny", tmp_path)
