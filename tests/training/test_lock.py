"""A folder belongs to one run at a time, also after a kill."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from momentprop.training import CheckpointError, Settings, fit, lock
from momentprop.training.lock import FolderLock
from momentprop.training.loop import Trainer

SHORT = Settings(method="ap1", epochs=2, batch_size=10)
HOLD = """
import sys, time
from pathlib import Path
from momentprop.training.lock import FolderLock
held = FolderLock(Path(sys.argv[1]))
held.acquire()
print("held", flush=True)
time.sleep(60)
"""


def _fit(out: Path, settings: Settings = SHORT, **options) -> list[dict]:
    examples = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(20).long()
    return fit(nn.Linear(3, 2), examples, settings, out=out, progress=False, **options)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_lock_keeps_others_out_until_it_is_released(tmp_path):
    mine, other = FolderLock(tmp_path / "a" / "run"), FolderLock(tmp_path / "a" / "run")
    mine.acquire()
    with pytest.raises(CheckpointError, match=r"is in use by another run \(process \d+\): choose another folder"):
        other.acquire()
    other.release()  # which has none
    assert _names(mine.folder) == [lock.NAME]
    mine.release()
    assert not (tmp_path / "a").exists()  # nothing was written
    other.acquire()
    (other.folder / "file").write_text("")
    other.release()
    assert _names(other.folder) == ["file"]


def test_a_process_that_is_killed_releases_its_lock(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=rf"in use by another run \(process {process.pid}\)"):
            _fit(tmp_path / "run", resume=True)
        process.kill()
    assert _names(tmp_path / "run") == [lock.NAME]
    assert len(_fit(tmp_path / "run")) == 2
    assert lock.NAME not in _names(tmp_path / "run")


def test_a_lock_is_taken_once_though_many_try(tmp_path):
    held, most, turn = [], [], threading.Barrier(8, timeout=60.0)

    def take() -> None:
        for _ in range(50):
            mine = FolderLock(tmp_path / "run")
            turn.wait()
            try:
                mine.acquire()
            except CheckpointError:
                continue
            held.append(mine)
            most.append(len(held))
            held.remove(mine)
            mine.release()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert len(most) >= 50


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_a_second_run_in_a_folder_is_refused_and_the_first_goes_on(tmp_path, monkeypatch, options):
    step, refused = Trainer.step, []

    def disturbed(self: Trainer, batch: torch.Tensor) -> None:
        if not refused:
            with pytest.raises(CheckpointError, match="is in use by another run") as error:
                _fit(tmp_path / "run", Settings(**{**SHORT.as_dict(), "seed": 1}), **options)
            refused.append(error)
        step(self, batch)

    monkeypatch.setattr(Trainer, "step", disturbed)
    assert len(_fit(tmp_path / "run")) == 2
    assert len(refused) == 1
    assert '"seed": 0' in (tmp_path / "run" / "config.json").read_text()


def test_a_run_that_fails_releases_its_folder(tmp_path):
    for _ in range(2):
        with pytest.raises(ValueError, match="there are no examples"):
            fit(nn.Linear(3, 2), (torch.zeros(0, 3), torch.zeros(0).long()), SHORT, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_system_without_locks_warns(tmp_path, monkeypatch):
    def unsupported(_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock, "_lock", unsupported)
    with pytest.warns(UserWarning, match=r"cannot be locked \(Operation not supported\): let no other run write there"):
        assert len(_fit(tmp_path / "run")) == 2
