"""`propagate` follows correlations: what it returns, where items lie, and what it refuses."""

import math
import warnings
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import momentprop
from momentprop import CorrelationWarning, Joint, Normal, NothingRandomWarning, joint_outputs, propagate
from momentprop.correlation import adjoint

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _mlp(*sizes, seed=0):
    torch.manual_seed(seed)
    layers = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double().eval()


NET = _mlp(5, 16, 3)


def _matrix(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# What comes out


def test_by_default_outputs_are_joint_values_that_wait():
    y = propagate(NET, X, input_variance=0.1)
    assert type(y) is Joint
    assert y.is_lazy
    assert torch.equal(y.loc, propagate(NET, X, input_variance=0.1, covariance=False).loc)
    assert y.covariance.shape == (4, 3, 3)
    assert not y.is_lazy


def test_the_adjoint_runs_once_for_each_unit_and_once_for_the_items(monkeypatch):
    passes = []
    pulled = adjoint.pulled
    monkeypatch.setattr(adjoint, "pulled", lambda *args, **kwargs: passes.append(1) or pulled(*args, **kwargs))
    with torch.no_grad():
        y = propagate(NET, X, input_variance=0.1)
        assert len(passes) == 0
        assert [y.variance, y.covariance, y.correlation, y.cross_covariance(), y.factors]
    assert len(passes) == 3 + 1
    with torch.no_grad():
        propagate(NET, X[:1], input_variance=0.1).variance  # noqa: B018
    assert len(passes) == 4 + 3


def test_all_units_are_taken_at_once_where_that_is_faster(monkeypatch):
    with torch.no_grad():
        wanted = propagate(NET, X, input_variance=0.1).covariance
        passes = []
        pulled = adjoint.pulled
        monkeypatch.setattr(adjoint, "_prefers_batches", lambda outputs: True)
        monkeypatch.setattr(adjoint, "pulled", lambda *args, **kwargs: passes.append(1) or pulled(*args, **kwargs))
        torch.testing.assert_close(propagate(NET, X, input_variance=0.1).covariance, wanted)
        assert len(passes) == 1  # also for the items

        def unable(*args):
            raise RuntimeError("an operation cannot be batched")

        monkeypatch.setattr(adjoint, "vmapped", unable)
        assert torch.equal(propagate(NET, X, input_variance=0.1).covariance, wanted)


def test_a_linear_model_is_exact():
    a, b = _matrix(5, 6), _matrix(6, 2)
    y = propagate(lambda x: (x @ a) @ b + (x @ a)[:, :2], X, input_variance=0.5)
    w = a @ b + a[:, :2]
    torch.testing.assert_close(y.covariance, (0.5 * w.mT @ w).expand(4, 2, 2))
    torch.testing.assert_close(y.cross_covariance(), (0.5 * w.mT).expand(4, 2, 5))


def test_several_outputs_know_what_they_share():
    a, b = _matrix(5, 2), _matrix(5, 2, seed=1)
    found = propagate(lambda x: {"a": x @ a, "b": (x @ b).unsqueeze(1)}, X, input_variance=0.5)
    difference = found["a"] - found["b"].squeeze(1)
    torch.testing.assert_close(difference.covariance, (0.5 * (a - b).mT @ (a - b)).expand(4, 2, 2))
    torch.testing.assert_close(found["a"].covariance, (0.5 * a.mT @ a).expand(4, 2, 2))


def test_a_difference_of_outputs_has_its_right_variance():
    y = propagate(NET, X, input_variance=0.1)
    wanted = propagate(NET, X, input_variance=0.1, outputs=lambda y: y[:, 0] - y[:, 1])
    torch.testing.assert_close((y[:, 0] - y[:, 1]).variance, wanted.variance)


def test_an_output_enters_the_next_model_with_its_covariance():
    a, b = _matrix(5, 6), _matrix(6, 2)
    between = propagate(lambda x: x @ a, X, input_variance=0.5)
    y = propagate(lambda x: x @ b, between)
    torch.testing.assert_close(y.covariance, (0.5 * (a @ b).mT @ (a @ b)).expand(4, 2, 2))
    torch.testing.assert_close(y.cross_covariance(), 0.5 * (a @ b).mT @ a.expand(4, 5, 6))
    both = y + between[:, :2]  # which share their sources
    w = a @ b + a[:, :2]
    torch.testing.assert_close(both.covariance, (0.5 * w.mT @ w).expand(4, 2, 2))


def test_two_inputs_that_share_their_sources():
    a, b = _matrix(5, 3), _matrix(5, 3, seed=1)
    x = propagate(lambda x: (x @ a, x @ b), X, input_variance=0.5)
    y = propagate(lambda p, q: p - 2 * q, *x)
    w = a - 2 * b
    torch.testing.assert_close(y.covariance, (0.5 * w.mT @ w).expand(4, 3, 3))
    torch.testing.assert_close(y.cross_covariance(which=1), (0.5 * w.mT @ b).expand(4, 3, 3))
    with pytest.raises(IndexError, match="2 random inputs"):
        y.cross_covariance(which=2)
    with pytest.raises(ValueError, match="their items do not correspond"):
        propagate(lambda p, q: p - 2 * q, x[0], x[1].flip(0))


def test_an_expected_loss_has_a_variance_too():
    a = _matrix(5, 1)
    y = propagate(lambda x: (x @ a).mean(), X, input_variance=0.5)
    torch.testing.assert_close(y.covariance, (0.5 * a.square().sum() / 4).reshape(1, 1))
    target = torch.zeros(4, 3, dtype=torch.float64)
    loss = propagate(lambda x: F.mse_loss(NET(x), target), X, input_variance=1e-6)
    slope = torch.func.grad(lambda x: F.mse_loss(NET(x), target))(X)
    torch.testing.assert_close(loss.variance, 1e-6 * slope.square().sum(), rtol=1e-3, atol=0.0)


def test_what_is_certain_is_a_joint_without_noise():
    with pytest.warns(NothingRandomWarning):
        y, z = propagate(lambda x: (x * 2, torch.ones(300, dtype=torch.float64)), X, covariance=True)
    assert type(y) is type(z) is Joint
    assert not y.variance.any()
    assert not z.variance.any()


def test_the_families_are_followed():
    for family in ("logistic", "fitted"):
        y = propagate(NET, X, input_variance=0.1, family=family)
        wanted = propagate(NET, X, input_variance=0.1)
        torch.testing.assert_close(y.stddev, wanted.stddev, rtol=0.05, atol=0.0)


# Choosing outputs


@pytest.mark.parametrize(
    "index", [[2, 0], slice(1, 3), torch.tensor([2, 1]), torch.tensor([True, False, True]), 1], ids=str
)
def test_units_are_chosen_by_an_index(index):
    whole, y = propagate(NET, X, input_variance=0.1), propagate(NET, X, input_variance=0.1, outputs=index)
    picked = torch.arange(3)[index].reshape(-1)
    torch.testing.assert_close(y.loc, whole.loc[:, index])
    torch.testing.assert_close(y.covariance, whole.covariance[:, picked][:, :, picked])
    factorized = propagate(NET, X, input_variance=0.1, outputs=index, covariance=False)
    torch.testing.assert_close(factorized.loc, y.loc)


def test_a_function_of_the_outputs_is_applied_inside_the_pass():
    y = propagate(lambda x: (x, x), X, input_variance=0.1, outputs=lambda out: out[0][:, :2] - out[1][:, 1:3])
    w = torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(y.covariance, (0.1 * w @ w.mT).expand(4, 2, 2))
    with pytest.raises(ValueError, match="the model returns 2: give a function"):
        propagate(lambda x: (x, 2 * x), X, input_variance=0.1, outputs=[0])


def test_too_many_outputs_are_refused_or_left_as_they_are():
    wide = _mlp(5, 200)
    with pytest.raises(ValueError, match=r"200 units per item.*`outputs=`.*`covariance=False`"):
        propagate(wide, X, input_variance=0.1, covariance=True)
    with pytest.warns(CorrelationWarning, match="`outputs=`.*`covariance=False`") as seen:
        y = propagate(wide, X, input_variance=0.1)
    assert seen[0].filename == __file__
    assert type(y) is Normal
    assert torch.equal(y.variance, propagate(wide, X, input_variance=0.1, covariance=False).variance)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert propagate(wide, X, input_variance=0.1, outputs=[3, 190]).covariance.shape == (4, 2, 2)


# Items


class Folded(nn.Module):
    """A network of sequences whose items are folded into other dimensions inside."""

    def __init__(self, fold, unfold):
        super().__init__()
        self.first, self.last = _mlp(5, 7), _mlp(7, 5)
        self.fold, self.unfold = fold, unfold

    def forward(self, x):
        inside = torch.tanh(self.first(self.fold(x)))
        return self.unfold(self.last(inside)).mean(1)


FOLDS = {
    "rows": (lambda x: x.flatten(0, 1), lambda x: x.unflatten(0, (-1, 6))),
    "time first": (lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1)),
    "rows, time first": (lambda x: x.transpose(0, 1).flatten(0, 1), lambda x: x.unflatten(0, (6, -1)).transpose(0, 1)),
    "one row": (lambda x: x.flatten(0, 1).unsqueeze(0), lambda x: x.squeeze(0).unflatten(0, (-1, 6))),
}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("items", [2, 3, 6])
def test_items_are_found_where_they_are_folded(name, items):
    model = Folded(*FOLDS[name])
    x = torch.randn(items, 6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    together = propagate(model, x, input_variance=0.3).covariance
    alone = torch.cat([propagate(model, x[i : i + 1], input_variance=0.3).covariance for i in range(items)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("dim", [1, -1])
def test_items_lie_along_another_dimension(dim):
    x = X.movedim(0, dim)
    y = propagate(lambda x: NET(x.movedim(dim, 0)).movedim(0, dim), x, input_variance=0.1, batch_dim=dim)
    wanted = propagate(NET, X, input_variance=0.1)
    assert y.batch_dim == 1
    torch.testing.assert_close(y.covariance, wanted.covariance)
    torch.testing.assert_close(y.variance, wanted.variance.movedim(0, dim))


def test_items_that_interact_are_refused_unless_the_batch_is_one_item():
    a = _matrix(5, 2)

    def centred(x):
        x = x @ a
        return x - x.mean(0)

    y = propagate(centred, X, input_variance=0.5)
    with pytest.raises(RuntimeError, match=r"interact.*`batch_dim=None`.*`covariance=False`"):
        y.variance  # noqa: B018
    y = propagate(centred, X, input_variance=0.5, batch_dim=None)
    w = torch.kron(torch.eye(4, dtype=torch.float64) - 0.25, a.mT.contiguous())
    torch.testing.assert_close(y.covariance, 0.5 * w @ w.mT)


def test_batch_norm_in_training_is_refused():
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double()
    with pytest.raises(ValueError, match=r"BatchNorm1d takes the statistics of the batch.*`model.eval\(\)`"):
        propagate(model, X, input_variance=0.1)
    assert propagate(model.eval(), X, input_variance=0.1).covariance.shape == (4, 3, 3)


def test_a_vector_is_one_item():
    a = _matrix(5, 5)
    y = propagate(lambda x: x @ a, X[0], input_variance=0.5)
    torch.testing.assert_close(y.covariance, 0.5 * a.mT @ a)


# Values inside the model


class RandomWeight(nn.Module):
    def __init__(self, twice=False):
        super().__init__()
        self.weight = Normal(_matrix(5, 3), 0.2)
        self.twice = twice

    def forward(self, x):
        if not self.twice:
            return x @ self.weight
        return x @ self.weight + (self.weight.t() @ x.t()).t()


@pytest.mark.parametrize("twice", [False, True])
def test_a_random_weight_is_noise_that_all_items_share(twice):
    model = RandomWeight(twice)
    y = propagate(model, X)
    wanted = torch.diag_embed((0.2 * X.square().sum(1)).unsqueeze(1).expand(4, 3)) * (4 if twice else 1)
    torch.testing.assert_close(y.covariance, wanted)
    assert not model.weight.loc.requires_grad


def test_a_random_weight_beside_a_random_input():
    x, w = torch.tensor([[2.0]], dtype=torch.float64), Normal(torch.tensor([[3.0]], dtype=torch.float64), 0.2)
    y = propagate(lambda x: torch.cat([x * w, x + w], 1), x, input_variance=0.1)
    product = 0.1 * 9 + 0.2 * 4 + 0.02
    wanted = torch.tensor([[[product, 0.1 * 3 + 0.2 * 2], [0.1 * 3 + 0.2 * 2, 0.3]]], dtype=torch.float64)
    torch.testing.assert_close(y.covariance, wanted)


# Pieces


def test_a_large_batch_is_run_in_pieces(monkeypatch):
    with torch.no_grad():
        wanted = propagate(NET, X, input_variance=0.1)
        monkeypatch.setattr(joint_outputs, "MEMORY", 4000)
        sizes = []
        by_sizes = joint_outputs.followed
        monkeypatch.setattr(joint_outputs, "followed", lambda *args: sizes.append(len(args[2])) or by_sizes(*args))
        wanted.covariance  # noqa: B018
        y, inside = propagate(NET, X, input_variance=0.1, record=True)
    assert len(sizes) > 2
    assert sizes[0] == sum(sizes[1:]) == 4
    torch.testing.assert_close(y.loc, wanted.loc)
    torch.testing.assert_close(y.covariance, wanted.covariance)
    torch.testing.assert_close(y.cross_covariance(), wanted.cross_covariance())
    assert inside["0"].shape == (4, 16)


# Gradients


def test_nothing_is_tracked_without_gradients():
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            y, inside = propagate(NET, X, input_variance=0.1, record=True)
            assert not y.loc.requires_grad
            assert not y.covariance.requires_grad
            assert not inside["1"].requires_grad
            assert y.stddev.shape == (4, 3)
    y = propagate(_mlp(5, 16, 3).requires_grad_(False), X, input_variance=0.1)
    assert not y.loc.requires_grad
    assert not y.covariance.requires_grad


def test_inputs_of_inference_mode_are_welcome():
    with torch.inference_mode():
        x = X.clone()
    torch.testing.assert_close(
        propagate(NET, x, input_variance=0.1).covariance, propagate(NET, X, input_variance=0.1).covariance
    )


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0].mean(1)[:, :2]


def _conv():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.SiLU(), nn.Conv2d(3, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))


MODELS = {
    "perceptron": (lambda: _mlp(4, 6, 6, 2), (3, 4), {}),
    "convolution": (lambda: _conv().double(), (2, 1, 5, 5), {}),
    "attention": (Attending, (2, 3, 4), {}),
    "dropout": (lambda: nn.Sequential(_mlp(4, 6), nn.Dropout(0.3), nn.Tanh(), _mlp(6, 2)), (3, 4), {"dropout": True}),
    "random units": (
        lambda: nn.Sequential(_mlp(4, 6), momentprop.nn.LogisticBernoulli(), _mlp(6, 6), nn.Tanh(), _mlp(6, 2)),
        (3, 4),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_gradients_through_the_covariance_are_those_of_finite_differences(name):
    make, shape, options = MODELS[name]
    model = make()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights = _matrix(2, 2, seed=5)

    def objective(x):
        y = propagate(model, x, input_variance=0.2, **options)
        return (y.covariance * weights).sum() + y.stddev.sum() + y.loc.square().sum() + y.probabilities()[:, 0].sum()

    x = x.requires_grad_()
    parameters = [x, *model.parameters()]
    gradients = torch.autograd.grad(objective(x), parameters)
    generator = torch.Generator().manual_seed(7)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        ends = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter += step * direction
            ends.append(objective(x).detach())  # with gradients, for which class posteriors take more points
            with torch.no_grad():
                parameter -= step * direction
        torch.testing.assert_close((gradient * direction).sum(), (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-7)


# Correlated inputs, and other methods


def test_the_covariance_of_the_inputs_is_given():
    root = _matrix(5, 5)
    given = root @ root.mT
    a = _matrix(5, 2)
    y = propagate(lambda x: x @ a, X, input_covariance=given)
    torch.testing.assert_close(y.covariance, (a.mT @ given @ a).expand(4, 2, 2))
    torch.testing.assert_close(y.cross_covariance(), (a.mT @ given).expand(4, 2, 5))
    each = torch.stack([given * (i + 1) for i in range(4)])
    y = propagate(lambda x: x @ a, X, input_covariance=each)
    torch.testing.assert_close(y.covariance, a.mT @ each @ a)
    one = propagate(lambda x: x @ a, X[0], input_covariance=given)
    torch.testing.assert_close(one.covariance, a.mT @ given @ a)
    mean = propagate(lambda x: (x @ a).mean(0), X, input_covariance=given)
    torch.testing.assert_close(mean.covariance, a.mT @ given @ a / 4)
    with pytest.raises(TypeError, match="both input_covariance and input_variance"):
        propagate(lambda x: x @ a, X, input_covariance=given, input_variance=0.1)
    with pytest.raises(TypeError, match="needs a floating-point tensor, but the argument is a"):
        propagate(nn.Embedding(3, 2), torch.tensor([1]), input_covariance=given)


def test_the_delta_method_is_the_jacobian_at_the_mean():
    y = propagate(NET, X, input_variance=0.3, method="linear")
    jacobian = torch.func.vmap(torch.func.jacrev(NET))(X)
    torch.testing.assert_close(y.loc, NET(X))
    torch.testing.assert_close(y.covariance, 0.3 * jacobian @ jacobian.mT)
    given = torch.eye(5, dtype=torch.float64) + 0.5
    y = propagate(NET, X, input_covariance=given, method="linear")
    torch.testing.assert_close(y.covariance, jacobian @ given @ jacobian.mT)
    with pytest.raises(ValueError, match="the noise of the inputs only, but 'dropout'"):
        propagate(nn.Dropout(0.5), X, method="linear")
    with pytest.raises(ValueError, match="gives a covariance"):
        propagate(NET, X, input_variance=0.3, method="linear", covariance=False)


def test_the_full_matrix_is_carried():
    a, b = _matrix(5, 6), _matrix(6, 2)
    y = propagate(lambda x: x @ a @ b, X, input_variance=0.5, method="full")
    torch.testing.assert_close(y.covariance, (0.5 * (a @ b).mT @ (a @ b)).expand(4, 2, 2))
    chosen = propagate(lambda x: x @ a @ b, X, input_variance=0.5, method="full", outputs=[1])
    torch.testing.assert_close(chosen.covariance, y.covariance[:, 1:, 1:])


def test_draws_have_a_covariance_on_request():
    a = _matrix(5, 2)
    draws = propagate(lambda x: (x @ a, (x @ a).sum()), X, input_variance=0.5, method="sample", covariance=True, seed=0)
    wanted = 0.5 * a.mT @ a
    error = wanted.diagonal().max() * math.sqrt(2 / 1000)
    assert (draws[0].covariance - wanted).abs().max() < 5 * error
    assert draws[1].covariance.shape == (1, 1)


@pytest.mark.parametrize(("units", "shape"), [(3, (3, 3)), (130, (130, 1, 1))])
def test_a_short_vector_is_one_item_for_draws_too(units, shape):
    a = torch.eye(units, dtype=torch.float64)
    for method in ({}, {"method": "sample", "samples": 9, "covariance": True}):
        y = propagate(lambda x: a @ x, torch.zeros(units, dtype=torch.float64), input_variance=0.5, **method)
        assert y.covariance.shape == shape


def test_what_has_no_correlations_is_refused():
    with pytest.raises(ValueError, match="a Mean has no correlations"):
        propagate(NET, X, method="ap1", covariance=True)
    with pytest.raises(ValueError, match="lie along dimension 1: write `batch_dim=1`"):
        propagate(lambda x: x, Joint(X, 0.1, batch_dim=1))
    with pytest.raises(RuntimeError, match=r"inside `torch.compile` or transforms"):
        torch.func.vmap(lambda x: propagate(NET, x, input_variance=0.1).loc)(X)


@pytest.mark.parametrize("function", [lambda x: x + torch.tanh(x), lambda x: x * torch.sigmoid(x)], ids=["sum", "gate"])
def test_functions_of_one_input_at_each_place_are_followed_together(function):
    y = propagate(function, X, input_variance=0.3)
    torch.testing.assert_close(y.variance, propagate(function, X, input_variance=0.3, covariance=False).variance)
    assert (y.covariance - torch.diag_embed(y.variance)).abs().max() < 1e-12


def test_rounding_is_not_taken_for_items_that_interact():
    a = _matrix(5, 3).float()
    y = propagate(lambda x: x @ a @ a.mT - x @ (a @ a.mT), X.float(), input_variance=1.0)
    assert y.stddev.max() < 1e-4
    y = propagate(lambda x: F.layer_norm(x, (5,)).sum(-1), X.float(), input_variance=1.0)  # a constant
    assert y.stddev.max() < 1


@pytest.mark.parametrize("gradients", [False, True])
def test_a_compiled_model_is_run_as_it_was_written(gradients):
    model = _mlp(5, 8, 3)
    with torch.set_grad_enabled(gradients):
        y = propagate(torch.compile(model, backend="eager"), X, input_variance=0.1)
        assert torch.equal(y.covariance, propagate(model, X, input_variance=0.1).covariance)
    assert y.covariance.requires_grad is gradients


def test_inside_compiled_code_it_is_refused():
    compiled = torch.compile(lambda x: propagate(NET, x, input_variance=0.1).covariance, backend="eager")
    with pytest.raises(Exception, match=r"inside `torch.compile` or transforms"):
        compiled(X)


def test_a_branch_that_is_dropped_for_the_whole_batch():
    """Items share the draw, which each has in its own covariance."""
    branch = momentprop.nn.StochasticDepth(0.25, mode="batch").train()
    y = propagate(branch, X)
    torch.testing.assert_close(y.covariance, X.unsqueeze(2) * X.unsqueeze(1) / 3)


def test_a_joint_inside_the_model_is_refused():
    weight = Joint(_matrix(5, 3), 0.1, _matrix(5, 3).unsqueeze(0), batch_dim=None)
    with pytest.raises(TypeError, match="a Joint inside the model meets a Normal"):
        propagate(lambda x: x @ weight, X, input_variance=0.1)


def test_an_empty_batch_has_an_empty_covariance():
    y = propagate(NET, X[:0], input_variance=0.1)
    assert y.covariance.shape == (0, 3, 3)
    assert y.variance.shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_followed(dtype):
    wanted = propagate(NET, X, input_variance=0.1).stddev
    y = propagate(_mlp(5, 16, 3).to(dtype), X.to(dtype), input_variance=0.1)
    assert y.covariance.dtype == dtype
    torch.testing.assert_close(y.stddev.double(), wanted, rtol=0.1, atol=0.0)


def test_pieces_of_a_correlated_input_and_random_weights_share_its_sources(monkeypatch):
    a = _matrix(5, 3)
    given = a @ a.mT + torch.eye(5, dtype=torch.float64)
    x = Joint.from_covariance(X, given)
    weight = Normal(torch.zeros(3, dtype=torch.float64), 0.5)
    with torch.no_grad():
        for memory in (2000, 2**31):  # in pieces, and item by item
            monkeypatch.setattr(joint_outputs, "MEMORY", memory)
            y = propagate(lambda x: x @ a + weight, x)
            wanted = a.mT @ given @ a
            torch.testing.assert_close(y.covariance, (wanted + 0.5 * torch.eye(3)).expand(4, 3, 3))
            torch.testing.assert_close(y.cross_covariance(), (a.mT @ given).expand(4, 3, 5))
            torch.testing.assert_close((y - x[:, :3]).covariance[:, 0, 0], _difference(a, given).expand(4))


def _difference(a, given):
    w = a[:, 0] - torch.eye(5, dtype=torch.float64)[0]
    return w @ given @ w + 0.5


@pytest.mark.parametrize("late", ["backward", "step"])
def test_a_variance_that_is_asked_for_too_late_is_told(late: str) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    y = propagate(model, torch.ones(2, 2), input_variance=0.1)
    if late == "backward":
        y.loc.sum().backward()
    else:
        with torch.no_grad():
            model[2].weight.add_(1.0)
    with pytest.raises(RuntimeError, match=r"ask for `variance` or `covariance` of the result before"):
        _ = y.variance
