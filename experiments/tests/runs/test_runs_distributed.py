"""Runs under `torchrun`: two processes give the result of one with the same batches, and write once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from momentprop_experiments import Config, load_model, train

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)

CONFIG = Config(
    network="mlp",
    activation="lrelu",
    dropout=0.2,  # AP2 propagates it without draws
    input_variance=0.1,
    optimizer="sgd",
    learning_rate=0.1,
    dtype="float64",
    epochs=2,
    batch_size=1501,  # two whole batches and one of 1498, parts of 751 and 750
    device="cpu",
)
COMMAND = ["train", "mlp", "--epochs", "1", "--method", "ap1", "--batch-size", "500", "--device", "cpu"]


def _launch(folder: Path, *arguments: str) -> str:
    """Run a script or module in two processes, and return their output."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [*launcher, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _work(folder: Path) -> None:
    """Do the work of one process; `torchrun` runs this file."""
    torch.set_num_threads(1)
    result = train(CONFIG, folder / "run")
    torch.save({"test": result.test, "run": result.model.state_dict()}, folder / f"rank{dist.get_rank()}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the run of two processes, and their output."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "printed").write_text(_launch(folder, __file__, str(folder)))
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_processes_give_the_parameters_of_one(folder, ranks, tmp_path):
    alone = train(CONFIG, tmp_path / "run", progress=False)
    for found in ranks:
        torch.testing.assert_close(found["run"], dict(alone.model.state_dict()), rtol=1e-10, atol=1e-12)
        assert found["test"] == pytest.approx(alone.test, rel=1e-9)
    written = load_file(folder / "run" / "model.safetensors")
    torch.testing.assert_close(written, dict(alone.model.state_dict()), rtol=1e-10, atol=1e-12)
    history = json.loads((folder / "run" / "result.json").read_text())["history"]
    for ours, theirs in zip(alone.history, history, strict=True):
        for name in ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy"):
            assert theirs[name] == pytest.approx(ours[name], rel=1e-9)


def test_a_run_of_two_processes_resumes_on_one(folder, tmp_path):
    shutil.copytree(folder / "run", tmp_path / "resumed")  # the other tests read the folder as it is
    longer = Config(**{**CONFIG.as_dict(), "epochs": 3})
    resumed = train(longer, tmp_path / "resumed", resume=True, progress=False)
    alone = train(longer, tmp_path / "run", progress=False)
    assert len(resumed.history) == 3
    torch.testing.assert_close(resumed.model.state_dict(), alone.model.state_dict(), rtol=1e-9, atol=1e-11)


def test_only_the_first_process_writes_and_speaks(folder):
    printed = (folder / "printed").read_text()
    assert printed.count("epoch 1 of 2:") == 1
    assert printed.count("test: loss") == 1
    assert (folder / "run" / "log.csv").read_text().count("\n") == 3
    load_model(folder / "run")


def test_the_command_runs_under_torchrun(tmp_path):
    printed = _launch(tmp_path, "-m", "momentprop", *COMMAND, "--out", "run")
    assert printed.count("Training into run:") == printed.count("Written to run: test accuracy") == 1
    load_model(tmp_path / "run")


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
