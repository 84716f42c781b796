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
from momentprop.training.checkpoint import FILE, Checkpoint, write
from momentprop_experiments import Config, load_model, train
from momentprop_experiments.networks import NETWORKS


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


def _at(*path, to):
    def changed(found):
        inside = found.state
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = to

    return changed


def _weight(change):
    def changed(found):
        name = next(iter(found.tensors))
        found.tensors[name] = change(found.tensors[name])

    return changed


@pytest.mark.parametrize(
    ("mutation", "message"),
    [
        (_at("config", to=[]), r"is not a valid checkpoint: .*its config must be a dict, but is \[\]"),
        (_at("config", "activation", to="<script>"), "there is no network like that: .*<script>"),
        (_at("config", "network", to=3), "there is no network like that: network must be of type str"),
        (_at("config", "nothing", to=3), "there is no network like that: there is no setting 'nothing'"),
        (_at("shape", to=[28]), r"its shape must be a tuple, but is \[28\]"),
        (_at("shape", to=[1, 10**9, 10**9]), "there are no images of shape"),
        (_at("shape", to=[1, -28, 28]), "there are no images of shape"),
        (_at("classes", to=None), "its classes must be a list, but is None"),
        (_at("classes", to=[]), "with 0 classes"),
        (_at("classes", to=["a"]), "is of another model: names or shapes of tensors differ"),
        (_weight(lambda x: x[:1]), "is of another model: names or shapes of tensors differ"),
        (_weight(lambda x: x * float("nan")), "holds NaN"),
        (_weight(lambda x: x.long()), "must be of type torch.float32, but is of type torch.int64"),
    ],
)
def test_a_network_whose_content_makes_no_sense_is_refused(mutation, message, tmp_path):
    config = Config(network="mlp", activation="lrelu").as_dict()
    about = {"config": config, "shape": [1, 28, 28], "classes": list("0123456789")}
    found = Checkpoint(
        about, NETWORKS["mlp"]("lrelu", dropout=0.0, norm="none", shape=(1, 28, 28), classes=10).state_dict()
    )
    write(tmp_path / "model.safetensors", found)
    load_model(tmp_path)
    mutation(found)
    write(tmp_path / "model.safetensors", found)
    with pytest.raises(CheckpointError, match=message) as error:
        load_model(tmp_path)
    assert str(tmp_path / "model.safetensors") in str(error.value)
