"""Training: settings, passes, losses, and the loop for any model."""

import json
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Estimate, Normal, propagate
from momentprop.errors import UserError
from momentprop.training import (
    Classification,
    ExpectedClassification,
    Regression,
    Settings,
    fit,
    gaussian_nll,
    over_ranks,
)
from momentprop.training.distributed import Ranks, as_device
from momentprop.training.passes import evaluate, training_pass
from momentprop.training.training_examples import as_examples, order

ONE = Ranks(0, 1, torch.device("cpu"))


def _blobs(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes that a line divides."""
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def _network(dropout: float = 0.2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 2))


@pytest.mark.parametrize(
    ("method", "evaluation", "expected"),
    [("sample", "same", "ap1"), ("ap2", "same", "ap2"), ("ap1", "same", "ap1"), ("ap2", "sample", "sample")],
)
def test_the_evaluation_follows_the_training_by_default(method, evaluation, expected):
    assert Settings(method=method, evaluate=evaluation).evaluation == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "ap3"}, "unknown method 'ap3': did you mean 'ap"),
        ({"softmax": "hard"}, "unknown softmax 'hard': choose one of race, fast"),
        ({"epochs": 0}, "epochs must be at least 1, but is 0"),
        ({"epochs": 1.5}, "epochs must be of type int, but is 1.5"),
        ({"epochs": True}, "epochs must be of type int, but is True"),
        ({"learning_rate": -1.0}, "learning rate must be more than 0, but is -1.0"),
        ({"learning_rate": math.nan}, "learning rate must be more than 0, but is nan"),
        ({"learning_rate": math.inf}, "learning rate must be more than 0, but is inf"),
        ({"input_variance": -0.1}, "input variance must be at least 0"),
        ({"samples": 1}, "samples must be at least 2, but is 1"),
        (
            {"amp": True, "dtype": "float64"},
            "amp works with dtype 'float32' only, but dtype is 'float64'",
        ),
        ({"ephocs": 3}, "there is no setting 'ephocs': did you mean 'epochs'"),
        ({"zzz": 3}, "there is no setting 'zzz'$"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Settings.from_dict(fields)


def test_the_order_depends_on_seed_and_epoch_only():
    torch.manual_seed(1)
    first = order(100, 0, 3)
    torch.manual_seed(2)
    assert torch.equal(first, order(100, 0, 3))
    assert not torch.equal(first, order(100, 0, 4))
    assert not torch.equal(first, order(100, 1, 3))
    assert torch.equal(first.sort().values, torch.arange(100))


def test_the_training_pass_runs_by_each_method():
    model, x = _network(), _blobs()[0]
    plain = model.eval()(x)
    model.train()
    assert torch.equal(training_pass(model, x, Settings(method="ap1")), plain)  # dropout has its mean
    ap2 = training_pass(model, x, Settings(method="ap2"))
    assert (ap2.variance > 0).all()
    noisy = training_pass(model, x, Settings(method="ap2", input_variance=0.1))
    assert (noisy.variance > ap2.variance).all()
    fitted = training_pass(model, x, Settings(method="ap2", family="fitted"))
    assert type(fitted).__name__ == "Fitted"
    torch.manual_seed(0)
    first = training_pass(model, x, Settings(method="sample"))
    assert not torch.equal(first, training_pass(model, x, Settings(method="sample")))
    still = training_pass(model.eval(), x, Settings(method="sample", input_variance=0.1))
    assert not torch.equal(still, plain)


def test_the_loss_is_that_of_the_class_posterior():
    x, y = _blobs()
    model = _network().eval()
    value = propagate(model, x, dropout=True, covariance=False)
    found = Classification("race")(value, y)
    torch.testing.assert_close(found[0].mean(), nn.functional.cross_entropy(value, y))
    assert found[1].mean() == (value.loc.argmax(-1) == y).float().mean()
    plain = Classification()(model(x), y)
    torch.testing.assert_close(plain[0].mean(), nn.functional.cross_entropy(model(x), y))


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
def test_the_evaluation_averages_over_all_examples(method):
    x, y = _blobs(1100)
    model = _network()
    settings = Settings(evaluate=method, softmax="race", samples=200)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    found = evaluate(model, as_examples((x, y)), settings, Classification("race"), ONE)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    model.eval()
    by = {"ap1": model(x), "ap2": propagate(model, x, dropout=True, covariance=False)}
    if method in by:
        assert found["loss"] == pytest.approx(nn.functional.cross_entropy(by[method], y).item(), abs=1e-6)
    else:  # the average of probabilities is below AP1's confidence, and near AP2's
        assert found["loss"] == pytest.approx(nn.functional.cross_entropy(by["ap2"], y).item(), abs=0.02)
        assert abs(found["loss"] - nn.functional.cross_entropy(by["ap1"], y).item()) > 1e-4


def test_a_class_that_no_draw_allows_has_a_finite_loss():
    nothing = torch.zeros(1, 2)
    estimate = Estimate.of(torch.tensor([[1.0, 0.0]]), nothing, nothing, nothing)
    assert Classification().of_draws(estimate, torch.tensor([1])).isfinite().all()


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_any_model_learns_by_each_method(method, optimizer):
    model = _network()
    settings = Settings(
        method=method,
        epochs=25,
        batch_size=20,
        learning_rate=0.02 if optimizer == "adam" else 0.5,
        optimizer=optimizer,
        decay=1.0,
    )
    before = torch.get_rng_state()
    history = fit(model, _blobs(), settings, validation=_blobs(), progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert history[-1]["validation_accuracy"] >= 0.95
    assert history[-1]["train_loss"] < 0.5 * history[0]["train_loss"]
    assert [row["epoch"] for row in history] == list(range(1, 26))


def test_the_learning_rate_decays_with_every_epoch():
    history = fit(_network(), _blobs(), Settings(epochs=3, learning_rate=0.1, decay=0.5), progress=False)
    assert [row["learning_rate"] for row in history] == [0.1, 0.05, 0.025]


def test_a_seed_gives_the_same_run_again():
    def final(seed: int) -> torch.Tensor:
        model = _network()
        fit(model, _blobs(), Settings(method="sample", epochs=2, batch_size=16, seed=seed), progress=False)
        return model[0].weight.detach().clone()

    assert torch.equal(final(0), final(0))
    assert not torch.equal(final(0), final(1))


class _Pairs(torch.utils.data.Dataset):
    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.inputs[i], int(self.targets[i])


def test_a_map_style_data_set_trains_as_the_tensors_do():
    models = [_network(), _network()]
    settings = Settings(epochs=2)
    histories = [
        fit(m, given, settings, progress=False) for m, given in zip(models, (_blobs(), _Pairs(*_blobs())), strict=True)
    ]
    assert histories[0][-1]["train_loss"] == histories[1][-1]["train_loss"]


@pytest.mark.parametrize(
    ("model", "examples", "message"),
    [
        (_network(), (torch.zeros(3, 2), torch.zeros(2)), "there are 3 inputs, but 2 targets"),
        (_network(), (torch.zeros(0, 2), torch.zeros(0)), "no examples to train with"),
        (_network(), 7, "a map-style data set, or a loader of batches, not a int"),
        (nn.ReLU(), _blobs(), "no parameters to train"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_one_sentence(model, examples, message):
    with pytest.raises(UserError, match=message):
        fit(model, examples, Settings(epochs=1), progress=False)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    out = tmp_path / "run"
    settings = Settings(epochs=3, learning_rate=1e30, optimizer="sgd", batch_size=10)
    with pytest.raises(UserError, match=r"not finite in epoch 1: use a learning rate below 1e\+30"):
        fit(_network(), _blobs(), settings, out=out, progress=False)
    assert json.loads((out / "checkpoint.json").read_text())["epoch"] == 0


def _line(count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """A noisy line, whose noise grows with the input."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 1, generator=generator)
    return x, 2 * x + (0.1 + 0.4 * x) * torch.randn(count, 1, generator=generator)


def test_regression_by_ap2_learns_the_mean_and_the_variance():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    settings = Settings(epochs=60, learning_rate=0.02, batch_size=50)
    history = fit(model, _line(), settings, objective=Regression(noise=0.01), progress=False)
    y = propagate(model.eval(), torch.tensor([[0.1], [0.9]]), dropout=True, covariance=False)
    torch.testing.assert_close(y.loc, torch.tensor([[0.2], [1.8]]), atol=0.15, rtol=0)
    assert y.stddev[1] > 1.2 * y.stddev[0]
    x, target = _line()
    of_one_variance = 0.5 * (2 * math.pi * math.e * (target - 2 * x).var()).log()  # the best with the true means
    assert history[-1]["train_loss"] < of_one_variance


class _TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.1))
        self.mean, self.spread = nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x):
        x = self.body(x)
        return self.mean(x), nn.functional.softplus(self.spread(x))


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
@pytest.mark.parametrize("evaluation", ["ap1", "ap2", "sample"])
def test_a_network_with_two_heads_trains_by_each_method(method, evaluation):
    torch.manual_seed(0)
    settings = Settings(method=method, evaluate=evaluation, epochs=15, learning_rate=0.02, batch_size=100)
    history = fit(_TwoHeads(), _line(), settings, validation=_line(), objective=Regression(), progress=False)
    assert history[-1]["validation_loss"] < history[0]["validation_loss"]


def test_the_gaussian_loss_is_the_logarithm_of_the_density():
    value, target = Normal(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 1.0]])), torch.tensor([[0.0, 3.0]])
    wanted = -torch.distributions.Normal(value.loc, (value.variance + 0.25).sqrt()).log_prob(target)
    torch.testing.assert_close(gaussian_nll(value, target, 0.25), wanted)
    torch.testing.assert_close(Regression(0.25)(value, target), torch.stack([wanted.sum(1), torch.tensor([2.0])]))
    both = Regression()((value, torch.full((1, 2), 0.25)), target)
    torch.testing.assert_close(both[0], wanted.sum(1))
    plain = -torch.distributions.Normal(value.loc, 0.5).log_prob(target)
    torch.testing.assert_close(gaussian_nll(value.loc, target, 0.25), plain)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Regression(-1.0), "at least 0, but is -1.0"),
        (lambda: Regression()(torch.zeros(3, 1), torch.zeros(3, 1)), "a Gaussian likelihood needs a variance"),
        (
            lambda: Regression(1.0)(torch.zeros(3, 1), torch.zeros(3)),
            r"must have the same shape, but have \(3, 1\) and \(3,\)",
        ),
    ],
)
def test_a_regression_that_makes_no_sense_is_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_numbers_are_no_classes():
    with pytest.raises(UserError, match=r"numbers, not classes: give `fit\(..., objective=Regression\(\)\)`"):
        fit(nn.Linear(1, 1), _line(), progress=False)


def test_the_expected_loss_is_the_mean_of_the_losses_of_draws():
    torch.manual_seed(0)
    output = Normal(2 * torch.randn(4, 5, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64) * 4)
    labels = torch.arange(4)
    draws = output.sample(200_000)
    losses = -draws.log_softmax(-1)[:, labels, labels]
    expected, accuracy = ExpectedClassification()(output, labels)
    assert ((expected - losses.mean(0)).abs() < 4 * losses.std(0) / 200_000**0.5).all()
    assert (expected > Classification("race")(output, labels)[0]).all()
    assert torch.equal(accuracy, (output.loc.argmax(-1) == labels).double())
    logits = draws[0]
    torch.testing.assert_close(
        ExpectedClassification()(logits, labels)[0], F.cross_entropy(logits, labels, reduction="none")
    )


def test_the_expected_loss_is_that_of_the_training_alone():
    settings = Settings(epochs=1, batch_size=60, loss="expected", softmax="race", dtype="float64")
    inputs, labels = _blobs()
    model = _network()
    (row,) = fit(model, (inputs, labels), settings, validation=(inputs, labels), progress=False)
    with torch.no_grad():
        output = propagate(model.double().eval(), inputs.double(), dropout=True, covariance=False)
    told = Classification("race")(output, labels)[0].mean()
    assert row["validation_loss"] == pytest.approx(float(told), rel=1e-6)
    assert ExpectedClassification()(output, labels)[0].mean() > told + 1e-3


def test_half_precision_trains_and_keeps_the_parameters_in_full():
    model = _network()
    history = fit(model, _blobs(), Settings(epochs=8, learning_rate=0.05, batch_size=20, amp=True), progress=False)
    assert model[0].weight.dtype == torch.float32
    assert history[-1]["train_accuracy"] > 0.9


def test_a_compiled_step_is_the_eager_step(monkeypatch):
    torch.compiler.reset()
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile(model, backend="aot_eager"))
    models = [_network(), _network()]
    for model, compiled in zip(models, (False, True), strict=True):
        fit(model, _blobs(), Settings(epochs=1, batch_size=30, dtype="float64", compile=compiled), progress=False)
    for eager, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(eager, other, rtol=1e-10, atol=1e-12)


def test_the_smaller_last_batch_is_not_compiled_again(monkeypatch):
    torch.compiler.reset()
    compile, graphs = torch.compile, []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model: compile(model, backend=backend))
    fit(_network(), _blobs(), Settings(epochs=2, batch_size=25, compile=True), progress=False)
    assert len(_blobs()[0]) % 25 > 0
    assert len(graphs) == 1


def test_a_graph_of_a_step_leaves_training_on_a_cpu_as_it_is():
    models = [_network(), _network()]
    for model, graph in zip(models, (False, True), strict=True):
        fit(model, _blobs(), Settings(epochs=1, device="cpu", graph=graph), progress=False)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_tensorboard_events_are_written_on_request(tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, *given):
            written.append(given)

        def flush(self):
            pass

    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    history = fit(_network(), _blobs(), Settings(epochs=2), out=tmp_path / "a", tensorboard=True, progress=False)
    assert written[0] == (str(tmp_path / "a" / "tensorboard"), 1)
    assert ("train/loss", history[1]["train_loss"], 2) in written
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        fit(_network(), _blobs(), Settings(epochs=2), out=tmp_path / "b", tensorboard=True, progress=False)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="device 'nonsense' cannot be used"):
        as_device("nonsense")


def test_without_processes_a_function_over_ranks_is_the_function():
    x = torch.rand(5, 2)
    assert torch.equal(over_ranks(lambda x: 2 * x, x), 2 * x)
