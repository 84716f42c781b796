"""`fit` with a loader: its batches, its random numbers, its resumption, and what it refuses."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from momentprop.errors import UserError
from momentprop.training import Settings, fit
from momentprop.training.checkpoint import Checkpoint, read, write
from momentprop.training.distributed import Ranks
from momentprop.training.loader import Loader, parts, some_inputs
from momentprop.training.training_examples import as_examples, order
from tests.killing import Killed, killed_after

NOISY = Settings(method="sample", epochs=3, batch_size=16, checkpoint_every=3, learning_rate=0.01, dtype="float64")


def _blobs(count: int = 75) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes that a plane divides."""
    inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs.sum(1) > 0).long()


class Jittered(Dataset):
    """Examples with noise that the data set draws itself, as an augmentation does."""

    def __len__(self) -> int:
        return 75

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = _blobs()
        return inputs[i] + 0.1 * torch.randn(3), labels[i]


class Endless(IterableDataset):
    def __iter__(self):
        return iter(TensorDataset(*_blobs()))


class Batches:
    """The smallest loader: something to iterate over that has a length."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def _loader(**options) -> DataLoader:
    return DataLoader(Jittered(), batch_size=16, shuffle=True, **options)


def _fit(model, out=None, **options):
    return fit(model, _loader(), NOISY, validation=_loader(), out=out, progress=False, **options)


def _timeless(history):
    return [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in history]


def _assert_same(model, other):
    ours, theirs = model.state_dict(), other.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_batches_of_the_same_examples_train_to_the_same_bits():
    inputs, labels = _blobs()
    settings = Settings(epochs=1, batch_size=16)
    chosen = order(len(inputs), settings.seed, 0).split(16)
    models = [_model(), _model()]
    histories = [
        fit(models[0], (inputs, labels), settings, validation=_blobs(), progress=False),
        fit(models[1], Batches([(inputs[i], labels[i]) for i in chosen]), settings,
            validation=Batches([_blobs()]), progress=False),
    ]  # fmt: skip
    _assert_same(*models)
    assert _timeless(histories[0]) == _timeless(histories[1])


def test_the_settings_are_the_default_ones_unless_others_are_given():
    models = [_model(), _model()]
    loader = DataLoader(TensorDataset(*_blobs()), batch_size=25, shuffle=True)
    histories = [fit(models[0], loader, progress=False), fit(models[1], loader, Settings(), progress=False)]
    _assert_same(*models)
    assert len(histories[0]) == Settings().epochs
    assert histories[0][-1]["train_loss"] < histories[0][0]["train_loss"]


@pytest.fixture(scope="module")
def uninterrupted():
    model = _model()
    return model, _fit(model)


@pytest.mark.parametrize("steps", [0, 4, 9])
def test_a_run_that_is_killed_resumes_to_the_same_bits(steps, uninterrupted, tmp_path):
    with killed_after(steps), pytest.raises(Killed):
        _fit(_model(), tmp_path / "run")
    torch.manual_seed(99)
    model = _model()
    history = _fit(model, tmp_path / "run", resume=True)
    _assert_same(model, uninterrupted[0])
    assert _timeless(history) == _timeless(uninterrupted[1])


@pytest.mark.parametrize("seen", [0, 2])
def test_a_number_of_examples_that_makes_no_sense_is_refused(seen, tmp_path):
    with killed_after(4), pytest.raises(Killed):
        _fit(_model(), tmp_path / "run")
    file = tmp_path / "run" / "checkpoint.safetensors"
    found = read(file)
    assert (found.state["step"], found.state["seen"]) == (3, 48)
    write(file, Checkpoint({**found.state, "seen": seen}, found.tensors))
    with pytest.raises(UserError, match=f"its position is step 3 after {seen} examples"):
        _fit(_model(), tmp_path / "run", resume=True)


def test_the_loader_and_the_noise_of_the_training_do_not_disturb_each_other():
    inputs = [torch.cat([batch.inputs for batch in Loader(_loader()).epoch(0, 1)]) for _ in range(2)]
    assert torch.equal(*inputs)
    assert not torch.equal(inputs[0], torch.cat([batch.inputs for batch in Loader(_loader()).epoch(0, 2)]))
    state = torch.get_rng_state()
    rest = [batch.inputs for batch in Loader(_loader()).epoch(0, 1, start=2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.cat(rest), inputs[0][32:])
    interleaved = []
    for batch in Loader(_loader()).epoch(0, 1):
        torch.randn(7)  # what the model draws meanwhile
        interleaved.append(batch.inputs)
    assert torch.equal(torch.cat(interleaved), inputs[0])


def test_processes_divide_every_batch():
    loader = Loader(Batches([_blobs(5), _blobs(1), _blobs(4)]))
    ranks = [Ranks(rank, 2, torch.device("cpu")) for rank in range(2)]
    found = [[len(targets) for _, targets in parts(loader, rank)] for rank in ranks]
    assert found == [[3, 1, 2], [2, 2]]
    kept = [[len(targets) for _, targets in parts(as_examples(_blobs(1100)), rank)] for rank in ranks]
    assert kept == [[500, 50], [500, 50]]


def test_a_calibration_takes_its_inputs_from_the_first_batches():
    found = some_inputs(Loader(Batches([_blobs(40), _blobs(40)])), 64, 0, 0, "cpu")
    assert found.shape == (64, 3)
    assert len(some_inputs(Loader(Batches([_blobs(40)])), 64, 0, 0, "cpu")) == 40
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    history = fit(model, _loader(), Settings(epochs=2, calibrate_every=1), progress=False)
    assert history[-1]["train_loss"] < 2


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Endless(), batch_size=5), r"the loader has no length \(.*\): give a data set of known length"),
        ((batch for batch in [_blobs()]), "the loader has no length"),
        (Batches([]), "no examples to train with"),
        (Batches([{"x": 1}]), "must give pairs .* of tensors, but gave a dict: write a `collate_fn`"),
        (Batches([(torch.zeros(3, 3), [0, 1, 0])]), r"gave a tuple of Tensor, list"),
        (Batches([(torch.zeros(3, 3), torch.zeros(2).long())]), "there are 3 inputs, but 2 targets"),
    ],
)
def test_a_loader_that_cannot_be_read_is_refused(loader, message):
    with pytest.raises(UserError, match=message):
        fit(_model(), loader, Settings(epochs=1), progress=False)


def test_a_loader_that_can_be_read_only_once_is_refused():
    once = Batches([_blobs()])
    once.batches = iter(once.batches)
    once.__class__ = type("Once", (Batches,), {"__len__": lambda _: 1})
    with pytest.raises(UserError, match="the loader gave no batches in epoch 2"):
        fit(_model(), once, Settings(epochs=2), progress=False)


def test_a_loader_that_divides_its_examples_itself_is_refused():
    sampler = torch.utils.data.DistributedSampler(Jittered(), num_replicas=2, rank=0)
    with pytest.raises(UserError, match="`fit` divides every batch: leave out its DistributedSampler"):
        fit(_model(), DataLoader(Jittered(), sampler=sampler), Settings(epochs=1), progress=False)


def test_workers_read_the_same_batches_each_time():
    runs = [[batch.inputs for batch in Loader(_loader(num_workers=1)).epoch(0, 0)] for _ in range(2)]
    assert torch.equal(torch.cat(runs[0]), torch.cat(runs[1]))


class Tied(nn.Module):
    """A network whose two layers have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("make", [_model, Tied])
def test_a_finished_run_leaves_its_model(make, tmp_path):
    model, other = make(), make()
    history = fit(model, _blobs(), Settings(epochs=2), out=tmp_path / "run", progress=False)
    other.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    _assert_same(model, other)
    about = read(tmp_path / "run" / "model.safetensors").state
    assert about["settings"] == Settings(epochs=2).as_dict()
    assert about["last"] == history[-1]
    again = make()
    (tmp_path / "run" / "model.safetensors").unlink()  # as if it had been killed just before
    fit(again, _blobs(), Settings(epochs=2), out=tmp_path / "run", resume=True, progress=False)
    assert (tmp_path / "run" / "model.safetensors").exists()
    _assert_same(model, again)


def test_a_run_that_is_killed_leaves_no_model(tmp_path):
    with killed_after(4), pytest.raises(Killed):
        fit(_model(), _blobs(), NOISY, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_calibrated_run_leaves_its_calibration(tmp_path):
    from momentprop import Calibration

    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    fit(model, _blobs(), Settings(epochs=1, calibrate_every=1), out=tmp_path / "run", progress=False)
    Calibration.load(tmp_path / "run" / "calibration.safetensors").require(model.eval())
