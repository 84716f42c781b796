"""Training runs: the files that a run leaves, the trained network, and its calibration."""

import csv
import json
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from momentprop import Calibration, fold, propagate
from momentprop.codegen import programs
from momentprop.data import load
from momentprop.errors import UserError
from momentprop.training import Classification, Settings
from momentprop.training.checkpoint import CALIBRATION
from momentprop.training.distributed import Ranks
from momentprop.training.loop import Trainer
from momentprop.training.passes import training_pass
from momentprop_experiments import Config, load_model, save_halved, train
from momentprop_experiments.networks import lenet, mlp
from momentprop_experiments.runs.training_run import build, load_data, split


class _HostCopies(TorchDispatchMode):
    """Records the operations that would copy a tensor to a GPU, or make Python wait for one."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.lift_fresh.default, torch.ops.aten._local_scalar_dense.default):
            self.found.append(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{"softmax": "race"}, {"loss": "expected"}, {"norm": "analytic"}], ids=str)
@pytest.mark.parametrize("activation", ["lrelu", "gelu", "silu", "elu", "softplus", "tanh", "logistic", "bernoulli"])
def test_a_step_of_ap2_has_nothing_that_a_graph_cannot_hold(activation, settings):
    config = Config(network="mlp", activation=activation, dropout=0.1, input_variance=0.1, device="cpu", **settings)
    images = load("digits").normalized().train
    trainer = Trainer(build(config, images), images, config, Ranks(0, 1, torch.device("cpu")))
    trainer.step(torch.arange(4))  # creates the constants
    trainer.optimizer.step = lambda: None  # on a GPU it counts its steps on the device
    with _HostCopies() as copies:
        trainer.step(torch.arange(4))
    assert copies.found == []


def test_networks_of_the_paper_have_gradients_by_ap2():
    for model in (lenet("bernoulli", dropout=0.2, norm="bn"), mlp("logistic", dropout=0.2)):
        output = training_pass(model, torch.rand(4, 1, 28, 28), Settings(input_variance=0.1, softmax="logistic"))
        Classification("logistic")(output, torch.tensor([0, 1, 2, 3]))[0].sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train a small network on the digits."""
    out = tmp_path_factory.mktemp("runs") / "mlp"
    config = Config(
        network="mlp", activation="bernoulli", family="fitted", epochs=3, learning_rate=0.01, init="bn", dropout=0.1
    )
    return train(config, out, progress=False)


def test_a_small_training_by_ap2_is_as_accurate_as_a_plain_one(run, tmp_path):
    plain = train(Config(network="mlp", activation="relu", method="ap1", epochs=3), tmp_path / "plain", progress=False)
    assert plain.test["accuracy"] > 0.88
    assert run.test["accuracy"] > plain.test["accuracy"] - 0.02


def test_a_run_leaves_its_configuration_log_result_and_curves(run):
    assert Config.from_dict(json.loads((run.out / "config.json").read_text())) == run.config
    with (run.out / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(text) for name, text in row.items()} for row in rows] == run.history
    assert {"train_loss", "train_accuracy", "validation_loss", "validation_accuracy"} < set(rows[0])
    result = json.loads((run.out / "result.json").read_text())
    assert result["test"] == run.test
    for name in ("curves.png", "curves.svg", "checkpoint.safetensors"):
        assert (run.out / name).stat().st_size > 0
    assert not list(run.out.glob(".*"))


def test_a_trained_network_can_be_loaded_and_used(run):
    model, about = load_model(run.out)
    test = load("digits").test
    images = test.batch()[0].sub(about["mean"][0]).div(about["std"][0])
    posterior = propagate(model, images, family="fitted", dropout=True, covariance=False).log_softmax(-1)
    assert (posterior.argmax(-1) == test.labels).float().mean().item() == pytest.approx(run.test["accuracy"], abs=1e-6)
    assert about["config"] == run.config.as_dict()


def test_a_network_of_half_the_size_classifies_the_same(run, tmp_path):
    save_halved(run.out, tmp_path / "half.safetensors")
    sizes = [path.stat().st_size for path in (tmp_path / "half.safetensors", run.out / "model.safetensors")]
    assert sizes[0] < 0.51 * sizes[1]
    images = load("digits").normalized().test.batch()[0]
    logits = [load_model(path)[0](images) for path in (tmp_path / "half.safetensors", run.out)]
    assert logits[0].dtype == torch.float32
    torch.testing.assert_close(logits[0], logits[1], atol=0.02, rtol=0)


def test_validation_zero_means_no_validation_images(tmp_path):
    result = train(Config(network="mlp", epochs=1, validation=0.0, method="ap1"), tmp_path / "run", progress=False)
    assert "validation_loss" not in result.history[0]
    assert (tmp_path / "run" / "curves.png").exists()


def test_without_matplotlib_a_run_ends_well_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    train(Config(network="mlp", epochs=1, method="ap1"), tmp_path / "run")
    printed = capsys.readouterr().err
    assert "no curves were drawn: figures need matplotlib" in printed
    assert "epoch 1 of 1: train loss" in printed
    assert "test: loss" in printed
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_other_test_images_must_have_the_same_shape(monkeypatch, tmp_path):
    from momentprop import data

    digits = load("digits")
    wide = data.Dataset("wide", digits.classes, digits.train, data.Split(torch.zeros(2, 1, 30, 30), torch.zeros(2)))
    monkeypatch.setattr(data, "load", lambda name, root: wide if name == "wide" else digits)
    with pytest.raises(UserError, match="the images of wide differ in shape from those of digits"):
        train(Config(test_data="wide"), tmp_path / "run")


@pytest.mark.full
@pytest.mark.parametrize(
    "fields",
    [
        {"dropout": 0.2, "epochs": 15},
        {"activation": "bernoulli", "family": "fitted", "learning_rate": 3e-3, "decay": 1.0},
    ],
    ids=["dropout", "bernoulli"],
)
def test_a_lenet_by_ap2_is_nearly_as_accurate_as_a_plain_one(fields, tmp_path):
    plain = train(Config(method="ap1", epochs=15), tmp_path / "plain", progress=False)
    by_ap2 = train(Config(method="ap2", **fields), tmp_path / "ap2", progress=False)
    assert by_ap2.test["accuracy"] > plain.test["accuracy"] - 0.01


def test_the_command_initializes_and_normalizes(tmp_path):
    config = Config(
        network="mlp", activation="relu", norm="analytic", init="analytic", method="ap1", epochs=1, input_variance=0.1
    )
    result = train(config, tmp_path / "run", progress=False)
    assert result.test["accuracy"] > 0.8
    model, about = load_model(tmp_path / "run")
    x = torch.rand(3, *about["shape"], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(x), result.model.eval()(x), rtol=0, atol=0)
        torch.testing.assert_close(fold(model)(x), model(x), rtol=1e-5, atol=1e-5)
    assert model.statistics_variance.item() == pytest.approx(1.1, abs=0.02)


def test_a_trained_network_has_a_calibration_of_its_last_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("momentprop_experiments.runs.curves.draw_curves", lambda *_: [])
    config = Config(
        network="mlp", activation="bernoulli", family="fitted", input_variance=0.1, calibrate_every=2, epochs=3,
        train_images=500, device="cpu",
    )  # fmt: skip
    result = train(config, tmp_path / "run", progress=False)
    model, about = load_model(tmp_path / "run")
    found = Calibration.load(tmp_path / "run" / CALIBRATION[0])
    found.require(model)
    assert torch.equal(found.numbers, result.calibration.numbers)
    assert about["test"] == train(config, tmp_path / "run", progress=False, resume=True).test
    train(config, tmp_path / "run", progress=False, overwrite=True)
    plain = Config(**{**config.as_dict(), "calibrate_every": 0})
    assert train(plain, tmp_path / "run", progress=False, overwrite=True).calibration is None
    assert not (tmp_path / "run" / CALIBRATION[0]).exists()


def test_few_images_are_chosen_by_the_seed():
    images = load_data(Config())
    everything, validation = split(images, Config())
    few, same = split(images, Config(train_images=100))
    assert (len(few), len(same)) == (100, len(validation))
    assert torch.equal(same.images, validation.images)
    positions = {bytes(image.numpy().tobytes()) for image in everything.images}
    assert all(image.numpy().tobytes() in positions for image in few.images)
    other, _ = split(images, Config(train_images=100, seed=1))
    assert not torch.equal(other.images, few.images)
    assert len(split(images, Config(train_images=100, validation=0))[0]) == 100
    with pytest.raises(UserError, match=r"train images must be at most 4,500, .*, but is 4,501"):
        split(images, Config(train_images=4501))


def test_kernels_are_built_before_they_run_so_that_no_build_ends_during_a_recording(tmp_path, monkeypatch):
    class Seen(Exception):  # noqa: N818 (no error)
        pass

    def run(*_):
        raise Seen(programs.mode())

    monkeypatch.setattr(programs, "STATE", {"mode": "auto"})
    monkeypatch.setattr(Trainer, "run", run)
    with pytest.raises(Seen, match="wait"):
        train(Config(network="mlp", data="digits", epochs=1, device="cpu"), tmp_path / "run", progress=False)
    assert programs.mode() == "auto"
