"""A killed run resumes to the same result, and only the file of a trained network loads."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from momentprop.training import CheckpointError, Settings, fit
from momentprop.training.checkpoint import FILE
from momentprop_experiments import Config, load_model, train


def _timeless(history: list[dict]) -> list[dict]:
    """Return the history without its times."""
    return [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in history]


def _assert_same(model: nn.Module, other: nn.Module) -> None:
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_killed_process_resumes_to_the_same_bits(tmp_path):
    config = Config(
        network="mlp", activation="bernoulli", method="sample", epochs=10, checkpoint_every=7, dropout=0.2, norm="bn"
    )
    out = tmp_path / "killed"
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-m", *shlex.split(config.command), "--out", str(out)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (out / FILE).exists():
            assert process.poll() is None
            assert time.monotonic() < deadline, "no checkpoint was written within a minute"
            time.sleep(0.01)
        delay = 0.6 * random.random()
        time.sleep(delay)
        killed = process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert killed, f"the run was over {delay} seconds after its first checkpoint"
    resumed = train(config, out, resume=True, progress=False)
    whole = train(config, tmp_path / "whole", progress=False)
    _assert_same(resumed.model, whole.model)
    assert _timeless(resumed.history) == _timeless(whole.history), f"killed after {delay} seconds"
    assert resumed.test == whole.test


def test_a_trained_network_is_loaded_from_its_own_file_only(tmp_path):
    with pytest.raises(CheckpointError, match="has the run finished"):
        load_model(tmp_path)
    examples = torch.randn(20, 3), torch.zeros(20).long()
    fit(nn.Linear(3, 2), examples, Settings(epochs=1), out=tmp_path / "run", progress=False)
    with pytest.raises(CheckpointError, match="is not a trained network"):
        load_model(tmp_path / "run" / FILE)
