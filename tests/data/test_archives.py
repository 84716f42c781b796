"""Archives: what is read, and what is refused."""

import gzip
import io
import tarfile

import pytest

from momentprop.data import archives
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
