"""Getting a data set: by hand, by several processes, and what the errors say."""

import sys
import threading

import pytest

from momentprop import data
from momentprop.data import sources
from momentprop.data.decode import decode_idx
from tests import tiny_data
from tests.data.fetching import assert_complete, assert_nothing_stored, names, start_child
from tests.tiny_data import FILES, LARGE, UNPACKED

# No source at all


def test_when_no_source_answers_the_error_says_what_to_do(use, tmp_path, monkeypatch):
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
        (FILES["t10k-images-idx3-ubyte.gz"], "its train images and labels are not the known ones: their SHA-256 is "),
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


# Two processes


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


# What it needs


@pytest.mark.parametrize("package", ["safetensors.torch", "numpy"])
def test_a_missing_package_is_named_with_the_extra_to_install(package, use, tmp_path, monkeypatch):
    use()
    monkeypatch.setitem(sys.modules, package, None)
    for function in (data.get, data.load):
        with pytest.raises(ImportError, match=r'pip install "momentprop\[experiments\]"'):
            function("tiny", tmp_path)


def test_the_default_root_is_a_variable_or_the_platforms_cache(monkeypatch, tmp_path):
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
