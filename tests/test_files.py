"""Files with tensors: what is written comes back, and an error names the kind of file."""

import sys

import pytest
import torch
from safetensors.torch import save_file

from momentprop import Calibration
from momentprop.files import FileError, read_tensors, write_file, write_tensors


def test_state_and_tensors_come_back(tmp_path):
    write_tensors(tmp_path / "a" / "file", {"n": [1, None]}, {"x": torch.eye(2).T}, "note")
    state, tensors = read_tensors(tmp_path / "a" / "file", "note")
    assert state == {"n": [1, None]}
    assert torch.equal(tensors["x"], torch.eye(2))


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_file(path, b"old")
    with pytest.raises(TypeError):
        write_file(path, "not bytes")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_errors_name_the_kind_of_file(tmp_path, monkeypatch):
    save_file({"x": torch.zeros(1)}, tmp_path / "file")
    with pytest.raises(FileError, match="is not a note of momentprop"):
        read_tensors(tmp_path / "file", "note")
    with pytest.raises(FileError, match="is not a calibration of momentprop"):
        Calibration.load(tmp_path / "file")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r'notes need safetensors: run `pip install "momentprop\[experiments\]"`'):
        write_tensors(tmp_path / "other", {}, {}, "note")
    with pytest.raises(ImportError, match="calibrations need safetensors"):
        Calibration.load(tmp_path / "file")
