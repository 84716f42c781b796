"""Archives and image formats: what is read, and what is refused."""

import gzip
import io
import json
import sys
import tarfile

import pytest
import torch
from PIL import Image

from momentprop.data import archives, decode
from momentprop.data.archives import gunzip, read_tar
from momentprop.data.errors import SourceError
from tests import tiny_data
from tests.tiny_data import tar_of


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


def test_only_the_files_asked_for_are_read():
    archive = tar_of({member("package", tarfile.DIRTYPE): b"", "./package/a": b"one", "package/b": b"two"})
    assert read_tar(io.BytesIO(archive), ["package/a"]) == {"package/a": b"one"}


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("package/../../outside"),
        member("/etc/passwd"),
        member("package\\..\\outside"),
        member("package/a", tarfile.SYMTYPE, "/etc/passwd"),
        member("package/link", tarfile.SYMTYPE, "a"),
        member("package/link", tarfile.LNKTYPE, "package/a"),
        member("package/device", tarfile.CHRTYPE),
        member("package/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda bad: bad.name,
)
def test_an_archive_with_a_suspicious_member_is_refused(bad, tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    archive = tar_of({bad: b"", "package/a": b"one"})
    with pytest.raises(SourceError, match="its archive is not safe: it has the member"):
        read_tar(io.BytesIO(archive), ["package/a"])
    assert [path.name for path in tmp_path.rglob("*")] == ["inside"]


def test_files_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(archives, "_LARGEST", 10)
    with pytest.raises(SourceError, match="its archive is not safe: 'a' has 11 bytes"):
        read_tar(io.BytesIO(tar_of({"a": bytes(11)})), ["a"])
    assert gunzip(gzip.compress(bytes(10))) == bytes(10)
    with pytest.raises(SourceError, match="it unpacks to too many bytes"):
        gunzip(gzip.compress(bytes(11)))


def test_what_an_archive_lacks_is_named():
    with pytest.raises(SourceError, match="its archive lacks `b`, `c`"):
        read_tar(io.BytesIO(tar_of({"a": b""})), ["c", "a", "b"])


@pytest.mark.parametrize("cut", [0, 1, 30, -5000])
def test_a_damaged_archive_is_refused(cut):
    archive = tar_of({"a": tiny_data.UNPACKED["t10k-images-idx3-ubyte"]})[:cut]
    with pytest.raises(SourceError, match="its archive is damaged"):
        read_tar(io.BytesIO(archive), ["a"])
    with pytest.raises(SourceError, match="it is damaged"):
        gunzip(gzip.compress(b"content")[:-4])


# CIFAR-10 in its two formats, with two images a batch

BATCHES = {f"data_batch_{number}": tiny_data.arrays(2, (3, 32, 32), seed=number) for number in range(1, 6)}
BATCHES["test_batch"] = tiny_data.arrays(2, (3, 32, 32), seed=6)


def binary():
    def records(images, labels):
        return torch.cat([labels[:, None], images.flatten(1)], dim=1).numpy().tobytes()

    return tar_of({f"cifar-10-batches-bin/{name}.bin": records(*batch) for name, batch in BATCHES.items()})


def png(array):
    packed = io.BytesIO()
    Image.fromarray(array.numpy()).save(packed, format="PNG")
    return packed.getvalue()


def sheets():
    files = {
        f"{name}.png": png(images.permute(0, 2, 3, 1).reshape(-1, 1024, 3)) for name, (images, _) in BATCHES.items()
    }
    labels = [batch.labels.tolist() for batch in BATCHES.values()]
    files["train_lables.json"] = json.dumps([label for batch in labels[:5] for label in batch]).encode()
    files["test_lables.json"] = json.dumps(labels[5]).encode()
    return files


def test_both_formats_of_cifar_give_the_same_arrays():
    train, test = list(BATCHES.values())[:5], BATCHES["test_batch"]
    expected = {"train": [torch.cat(parts) for parts in zip(*train, strict=True)], "test": list(test)}
    from_binary = decode.decode_cifar_binary({"cifar-10-binary.tar.gz": binary()})
    from_sheets = decode.decode_cifar_sheets(sheets())
    for split, (images, labels) in expected.items():
        for decoded in (from_binary, from_sheets):
            assert torch.equal(decoded[split].images, images)
            assert torch.equal(decoded[split].labels, labels)
    assert set(decode.SHEETS) == set(sheets())


def test_incomplete_batches_of_cifar_are_refused():
    empty = tar_of({f"cifar-10-batches-bin/{name}.bin": bytes(3072) for name in BATCHES})
    with pytest.raises(SourceError, match="its batches hold 15360 bytes, which is not a multiple of 3073"):
        decode.decode_cifar_binary({"cifar-10-binary.tar.gz": empty})


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("data_batch_1.png", b"no image", "`data_batch_1.png` is damaged"),
        ("data_batch_1.png", sheets()["data_batch_1.png"][:-500], "`data_batch_1.png` is damaged"),
        ("data_batch_1.png", png(torch.zeros(2, 1024, dtype=torch.uint8)), "is not a sheet of 32 by 32 colour images"),
        ("data_batch_1.png", png(torch.zeros(2, 9, 3, dtype=torch.uint8)), "is not a sheet of 32 by 32 colour images"),
        ("test_lables.json", b"[1, 2", "`test_lables.json` is damaged"),
        ("test_lables.json", b"[1, 1000]", "`test_lables.json` is damaged"),
        ("test_lables.json", b'["a"]', "`test_lables.json` is damaged"),
    ],
)
def test_damaged_sheets_are_refused(name, content, why):
    with pytest.raises(SourceError, match=why):
        decode.decode_cifar_sheets({**sheets(), name: content})


def test_without_pillow_the_sheets_say_what_to_install(monkeypatch):
    files = sheets()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SourceError, match=r'its images need pillow: run `pip install "momentprop\[experiments\]"`'):
        decode.decode_cifar_sheets(files)
