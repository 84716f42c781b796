"""Downloads from servers, whatever goes wrong on the way."""

import sys
import threading

import pytest

from momentprop import data
from momentprop.data import download
from tests import tiny_data
from tests.data.fetching import assert_complete, assert_nothing_stored, names, start_child
from tests.tiny_data import FILES, LARGE, Server

SIZE = len(FILES[LARGE])


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


def test_a_hopeless_transfer_is_given_up_but_what_came_is_kept(server, use, tmp_path):
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
    with pytest.raises(data.DataError, match="it does not send the original file: the SHA-256 differs"):
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


# A process that is killed


def test_a_killed_download_is_not_trusted_and_is_taken_up_again(server, use, tmp_path):
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
