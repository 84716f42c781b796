"""Draws in one batch have the law of single draws, and models that mix the items of a batch get single ones."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import momentprop
from momentprop import Normal, propagate
from momentprop.running import Run
from momentprop.values.folded import Fold, Folded, NotFolded

B, SAMPLES = 3, 4000


@pytest.fixture
def passes(monkeypatch):
    """The numbers of draws of the passes that have run as one batch."""
    counts = []
    folded = Run.folded

    def counted(self, recording, count, most):
        result = folded(self, recording, count, most)
        counts.append(count)
        return result

    monkeypatch.setattr(Run, "folded", counted)
    return counts


def _in(*shape):
    return torch.randn(B, *shape, generator=torch.Generator().manual_seed(1))


def _agrees(found, draws):
    """Compare an estimate with draws that are made by hand."""
    n = len(draws)
    error = (found.loc_error**2 + draws.var(0) / n).sqrt() + 1e-6
    assert found.shape == draws.shape[1:]
    assert ((found.loc - draws.mean(0)).abs() < 6 * error).all()
    fourth = (draws - draws.mean(0)).pow(4).mean(0)
    error = (found.variance_error**2 + (fourth - draws.var(0) ** 2).clamp(min=0) / n).sqrt() + 1e-5
    assert ((found.variance - draws.var(0)).abs() < 6 * error).all()


def _singly(model, x, variance):
    torch.manual_seed(5)
    with torch.no_grad():
        return torch.stack([model(x + variance**0.5 * torch.randn_like(x)) for _ in range(SAMPLES)])


W = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)) / 2
ITEMS = torch.randn(B, 4, generator=torch.Generator().manual_seed(3))
SQUARE = torch.randn(4, 4, generator=torch.Generator().manual_seed(4)) / 2


def _in_place(x):
    y = x * 2
    y += 1
    y.mul_(ITEMS)
    return F.relu(y, inplace=True)


KEEPS = {
    "linear": ((4,), lambda x: F.linear(x, W)),
    "matmul": ((4,), lambda x: x @ W.T),
    "plain times items": ((4, 2), lambda x: SQUARE @ x),
    "batched matmul": ((4, 2), lambda x: x @ x.mT),
    "elementwise": ((4,), lambda x: torch.tanh(F.gelu(x)) + F.softplus(x).sqrt()),
    "a plain tensor of items": ((4,), lambda x: x * ITEMS + ITEMS[:, :1] - ITEMS[0]),
    "a plain tensor of more dimensions": ((4,), lambda x: x + torch.ones(2, 1, 1)),
    "values of two ranks": ((4,), lambda x: x + x.sum(1)[:, None] + x.mean(1).unsqueeze(-1) * 2),
    "vectors of items": ((4,), lambda x: x.sum(1) * ITEMS[:, 0]),
    "a comparison": ((4,), lambda x: torch.where(x > 0, x, -2 * x) * (x < 1)),
    "softmax": ((4,), lambda x: x.softmax(-1).log()),
    "convolution": ((2, 5, 5), lambda x: F.max_pool2d(F.conv2d(x, torch.ones(3, 2, 2, 2)), 2).flatten(1)),
    "norms": ((2, 4, 4), lambda x: F.layer_norm(F.group_norm(x, 2), (4, 4))),
    "batch norm": ((2,), lambda x: F.batch_norm(x, torch.zeros(2), torch.full((2,), 2.0), training=False)),
    "reshape": ((4, 2), lambda x: x.reshape(-1, 2).cumsum(-1).view(B, 4, 2).permute(0, 2, 1).flatten(1)),
    "items and features as one": ((4, 2), lambda x: x.flatten(0, 1).tanh()),
    "cat": ((4,), lambda x: torch.cat((x, ITEMS, x * 2), 1)),
    "stack": ((4,), lambda x: torch.stack((x, x.abs()), -1)),
    "split": ((4,), lambda x: (lambda a, b: a * b)(*x.chunk(2, 1))),
    "index": ((4, 2), lambda x: x[:, 1:3, 0] + x[..., 0, :1]),
    "pad": ((4,), lambda x: F.pad(x, (1, 0)).flip([1])),
    "attention": ((4, 2), lambda x: F.scaled_dot_product_attention(x, x + 1, x)),
    "in place": ((4,), _in_place),
    "noise of its shape": ((4,), lambda x: x + torch.randn_like(x)),
    "noise of a shape": ((4,), lambda x: x + torch.randn(B, 4)),
    "noise that items share": ((4,), lambda x: x + torch.randn(4)),
    "bernoulli": ((4,), lambda x: torch.bernoulli(x.sigmoid())),
    "dropout": ((4,), lambda x: F.dropout(x, 0.3)),
}


@pytest.mark.parametrize("name", KEEPS)
def test_what_keeps_items_apart_is_drawn_in_one_batch(name, passes):
    shape, function = KEEPS[name]
    x = _in(*shape)
    found = propagate(function, x, method="sample", input_variance=0.3, samples=SAMPLES, seed=0)
    assert max(passes) > SAMPLES // 2
    _agrees(found, _singly(function, x, 0.3))


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x):
        self.state += x.mean(1).sum()
        return x + self.state


class Catching(nn.Module):
    def forward(self, x):
        try:
            return x.softmax(0)
        except Exception:
            return x


MIXES = {
    "softmax over items": ((4,), lambda x: x.softmax(0)),
    "the mean of all": ((4,), lambda x: x - x.mean()),
    "the sum over items": ((4,), lambda x: x - x.sum(0)),
    "batch norm of the batch": ((4,), lambda x: F.batch_norm(x, None, None, training=True)),
    "items as features": ((4,), lambda x: F.linear(x.T, torch.ones(2, B))),
    "the first item": ((4,), lambda x: x * x[0]),
    "items by a list": ((4,), lambda x: x[[0, 0, 1]]),
    "items in another order": ((4,), lambda x: x.flip([0])),
    "cat of items": ((4,), lambda x: torch.cat((x, x))),
    "convolution without items": ((4, 4), lambda x: F.conv2d(x, torch.ones(1, B, 2, 2))),
    "one item as features": ((), lambda x: F.linear(x, torch.ones(2, B))),
    "a random branch": ((4,), lambda x: x * 2 if bool((x > 0.5).sum() > 5) else x),
    "an element": ((4,), lambda x: x * x[0, 0].item()),
    "a loop over items": ((4,), lambda x: torch.stack([row * i for i, row in enumerate(x)])),
    "a random weight": ((4,), lambda x: F.linear(x, torch.randn(5, 4))),
    "dropped weights": ((4,), lambda x: F.linear(x, F.dropout(W))),
    "a random number": ((4,), lambda x: x * torch.randn(())),
    "depth of the whole batch": ((4,), lambda x: momentprop.functional.stochastic_depth(x, 0.5, "batch")),
}


@pytest.mark.parametrize("name", MIXES)
def test_what_mixes_items_is_not(name, passes):
    shape, function = MIXES[name]
    x = _in(*shape)
    found = propagate(function, x, method="sample", input_variance=0.3, samples=SAMPLES, seed=0)
    assert not passes
    _agrees(found, _singly(function, x, 0.3))


@pytest.mark.parametrize(
    ("model", "by_hand"),
    [(Remembering(), lambda x: x + x.mean(1).sum()), (Catching(), lambda x: x.softmax(0))],
    ids=["a buffer", "a caught refusal"],
)
def test_modules_that_mix_items(model, by_hand, passes):
    x = _in(4)
    found = propagate(model, x, method="sample", input_variance=0.3, samples=SAMPLES, seed=0)
    assert not passes
    _agrees(found, _singly(by_hand, x, 0.3))


def test_batch_norm_in_training_is_not_drawn_in_one_batch(passes):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    propagate(model, _in(4), method="sample", input_variance=0.3, samples=8)
    assert not passes


def test_random_numbers_from_elsewhere_are_drawn_singly(passes):
    random.seed(0)
    for noise in (random.gauss, random.Random(0).gauss):
        passes.clear()
        found = propagate(
            lambda x, noise=noise: x + noise(0, 1), _in(4), method="sample", input_variance=0.0, samples=500, seed=0
        )
        assert max(passes, default=0) <= 1
        assert ((found.variance - 1).abs() < 0.4).all()


def test_a_model_of_torch_runs_once_for_all_draws(passes):
    x = _in(4)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).eval()
    for dropout in (False, True):
        passes.clear()
        propagate(model, x, method="sample", input_variance=0.1, dropout=dropout, samples=32)
        assert passes == [32]
    assert not model[2].training


def test_another_model_is_replayed_and_runs_once_for_all_draws(passes):
    propagate(lambda x: x.tanh(), _in(4), method="sample", input_variance=0.1, samples=32)
    assert passes == [1, 1, 1, 32]


NOISY = {
    "bernoulli": momentprop.nn.LogisticBernoulli(),
    "rectifier": momentprop.nn.StochasticReLU(),
    "gaussian": momentprop.nn.GaussianNoise(0.5),
    "gaussian of units": momentprop.nn.GaussianNoise(torch.rand(4)),
    "depth": momentprop.nn.StochasticDepth(0.3),
    "classes": momentprop.nn.GumbelArgmax(-1),
    "laplace": momentprop.nn.AdditiveNoise("laplace"),
    "products": momentprop.nn.MultiplicativeNoise.dropout(0.5),
    "step": momentprop.nn.Heaviside(),
}


@pytest.mark.parametrize("name", NOISY)
def test_units_of_the_library_draw_for_every_item_and_draw(name, passes):
    model = nn.Sequential(nn.Linear(4, 4), NOISY[name]).train()
    x = _in(4)
    found = propagate(model, x, method="sample", input_variance=0.3, samples=SAMPLES, seed=0)
    assert sum(passes) == SAMPLES
    _agrees(found, _singly(model, x, 0.3))


def test_noise_that_differs_between_items_is_not_drawn_in_one_batch(passes):
    model, x = momentprop.nn.GaussianNoise(torch.rand(B, 1)), _in(4)
    found = propagate(model.train(), x, method="sample", input_variance=0.1, samples=SAMPLES, seed=0)
    assert not passes
    _agrees(found, _singly(model, x, 0.1))


def test_noise_makes_draws_of_a_plain_tensor(passes):
    model = nn.Sequential(nn.Embedding(9, 6), nn.Dropout(0.4), nn.Linear(6, 2)).train()
    ids = torch.tensor([[1, 2], [3, 4]])
    found = propagate(model, ids, method="sample", samples=SAMPLES, seed=0)
    assert sum(passes) == SAMPLES
    with torch.no_grad():
        _agrees(found, torch.stack([model(ids) for _ in range(SAMPLES)]))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)

    def forward(self, x):
        return F.dropout(self.attention(x, x, x)[0], 0.1)


@pytest.mark.parametrize("model", [Attending(), lambda x: F.dropout(x * F.rrelu(x, 0.1, 0.9, True), 0.1)])
def test_noise_inside_of_a_function_of_plain_tensors_is_noticed(model):
    x = _in(3, 4)
    found = propagate(model, x, method="sample", samples=SAMPLES, seed=0)
    with torch.no_grad():
        _agrees(found, torch.stack([model(x) for _ in range(SAMPLES)]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.ops.aten.bernoulli(torch.full((1, 4), 0.5)),
        lambda x: torch.func.vmap(lambda row: row.softmax(-1))(x),
        torch.compile(lambda x: x - x.mean(), backend="eager"),
    ],
    ids=["aten", "vmap", "compiled"],
)
def test_calls_that_are_no_ordinary_functions(function):
    x = _in(4)
    found = propagate(function, x, method="sample", input_variance=0.3, samples=SAMPLES, seed=0)
    _agrees(found, _singly(function, x, 0.3))


def test_a_certain_model_has_no_variance():
    found = propagate(nn.Linear(4, 2), _in(4), method="sample", input_variance=0.0, samples=20)
    assert (found.variance < 1e-12).all()


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        y = self.layer(x)
        return {"y": y, "class": y.argmax(1), "certain": torch.ones(2)}


def test_seeds_records_and_structures(passes):
    model, x = Several(), _in(4)
    (first, inside), (second, _) = (
        propagate(model, x, method="sample", input_variance=0.3, samples=500, seed=7, record=True) for _ in range(2)
    )
    assert sum(passes) >= 1000
    assert torch.equal(first["y"].variance, second["y"].variance)
    assert torch.equal(inside["layer"].variance, first["y"].variance)
    assert first["class"].shape == (B,)
    assert first["certain"].variance.tolist() == [0, 0]
    exact = propagate(model.layer, x, input_variance=0.3, covariance=False)
    torch.testing.assert_close(first["y"].variance, exact.variance, rtol=0.4, atol=0.0)


def test_batches_stay_within_the_memory(monkeypatch, passes):
    model = nn.Sequential(nn.Linear(4, 1000), nn.Linear(1000, 2))
    one = B * (4 + 1000 + 2) * 4
    monkeypatch.setattr(momentprop.sampling, "MEMORY", 10 * one)
    propagate(model, _in(4), method="sample", input_variance=0.1, samples=25)
    assert passes == [9, 10, 6]


def test_a_batch_that_grows_too_large_is_given_up(monkeypatch, passes):
    model = nn.Sequential(nn.Linear(4, 10_000), nn.Linear(10_000, 2))
    monkeypatch.setattr(momentprop.sampling, "MEMORY", 4 * B * 10_000 * 4)
    propagate(model, _in(4), method="sample", input_variance=0.1, samples=25)
    assert passes == [1, *[3] * 8]


def test_draws_of_vmap_that_are_all_the_same_are_made_singly(monkeypatch):
    def one_for_all(function, **_):
        return lambda batch: tuple(draw.expand(len(batch), *draw.shape) for draw in function(batch[0]))

    monkeypatch.setattr(torch.func, "vmap", one_for_all)
    torch.manual_seed(0)
    (found,) = momentprop.sampling.stream(lambda: [torch.randn(3)], 300)
    torch.testing.assert_close(found.variance, torch.ones(3), rtol=0.3, atol=0.0)


def test_a_covariance_is_that_of_draws_in_one_batch(passes):
    layer, x = nn.Linear(4, 2), _in(4)
    found = propagate(layer, x, method="sample", input_variance=0.3, covariance=True, samples=20_000, seed=0)
    assert sum(passes) == 20_000
    wanted = (0.3 * layer.weight @ layer.weight.T).expand(B, 2, 2)
    torch.testing.assert_close(found.covariance, wanted, rtol=0.1, atol=0.01)


def test_a_random_argument_beside_plain_ones(passes):
    a, b = Normal(_in(4), 0.2), _in(4)
    found = propagate(lambda a, b, scale: a * b + scale, a, b, scale=2.0, method="sample", samples=SAMPLES, seed=0)
    assert sum(passes) >= SAMPLES
    _agrees(found, _singly(lambda x: x * b + 2.0, a.loc, 0.2))


def test_draws_in_one_batch_look_like_one_draw_and_hide_their_elements():
    fold = Fold(5, 2**20)
    x = fold.drawn(torch.zeros(5, 2, 3))
    assert isinstance(x, Folded)
    assert (x.shape, x.size(1), len(x), x.numel(), x.ndim, x.unfolded().shape) == ((2, 3), 3, 2, 6, 2, (5, 2, 3))
    for ask in (bool, iter, lambda x: x.loc, lambda x: x.stride(), torch.relu):
        with pytest.raises(NotFolded):
            ask(x)


def test_a_first_batch_is_as_large_as_the_memory_of_the_device_allows(monkeypatch, passes):
    model, x = nn.Linear(4, 2), _in(4)
    monkeypatch.setattr(momentprop.sampling, "MEMORY", 3 * momentprop.sampling.GROWTH * x.nbytes)
    monkeypatch.setattr(momentprop.sampling, "_budget", lambda device: 100 * momentprop.sampling.MEMORY)
    propagate(model, x, method="sample", input_variance=0.1, samples=32)
    assert passes == [32]
