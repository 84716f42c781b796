"""Files with tensors: what is written comes back, and an error names the kind of file."""

import hashlib
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from momentprop import Calibration
from momentprop.files import FileError, digest, read_tensors, sha256, write_file, write_tensors


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8])
def test_the_hash_of_a_tensor_is_that_of_its_elements(dtype):
    x = torch.tensor([[0.0, 1.5, -2.0], [3.0, 0.5, 4.0]]).to(dtype)
    wanted = hashlib.sha256(bytes(x.reshape(-1).view(torch.uint8).tolist())).hexdigest()
    strided = torch.stack((x, x), -1)[..., 0]
    for same in (x, x.T.contiguous().T, strided, torch.cat((x, x))[2:], nn.Parameter(x, requires_grad=False)):
        assert sha256(same) == wanted
    assert sha256(x.T) != wanted
    assert sha256(x[:0]) == hashlib.sha256().hexdigest()


def test_the_hash_reads_views_that_negate_lazily():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert sha256(z.conj().imag) == sha256(-z.imag)


def test_no_hash_needs_numpy(monkeypatch):
    def unavailable(*_):
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", unavailable)
    assert len(sha256(torch.ones(2))) == len(digest({"x": torch.ones(2)}, "")) == 64
