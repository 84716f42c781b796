"""Reads untrusted archives safely: nothing in them is ever written to disk."""

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import IO

from momentprop.data.errors import SourceError

_LARGEST = 2**28  # bytes of an unpacked file: ours have at most 47 MB; a malicious one must not fill the memory

_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)


def read_tar(archive: Path | IO[bytes], names: Collection[str]) -> dict[str, bytes]:
    """Return the content of the files `names` of a tar archive.

    Refuse an archive with a link, a device, or a member outside its own folder: none of our data sets has any.
    """
    found = {}
    try:
        with tarfile.open(archive) if isinstance(archive, Path) else tarfile.open(fileobj=archive) as tar:
            for member in tar:
                name = _checked_name(member)
                file = tar.extractfile(member) if name in names else None
                if file is not None:
                    found[name] = file.read()
    except _DAMAGED as error:
        raise SourceError("its archive is damaged") from error
    if absent := sorted(set(names) - set(found)):
        raise SourceError(f"its archive lacks {', '.join(f'`{name}`' for name in absent)}")
    return found


def _checked_name(member: tarfile.TarInfo) -> str:
    """Return the path of a member without a leading `./`, or raise an error if it is suspicious."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or not (member.isreg() or member.isdir()):
        raise SourceError(f"its archive is not safe: it has the member {member.name!r}")
    if member.size > _LARGEST:
        raise SourceError(f"its archive is not safe: {member.name!r} has {member.size} bytes")
    return str(path)


def gunzip(content: bytes) -> bytes:
    """Return the unpacked content of a gzip file."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(_LARGEST + 1)
    except _DAMAGED as error:
        raise SourceError("it is damaged") from error
    if len(unpacked) > _LARGEST:
        raise SourceError("it is not safe: it unpacks to too many bytes")
    return unpacked
