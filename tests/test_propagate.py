"""`propagate`: three methods on an unmodified model, which is left as it was."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import momentprop
from momentprop import Estimate, Fitted, Logistic, Mean, Normal, Sample, propagate


def _model():
    torch.manual_seed(0)
    layers = (nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 3))
    return nn.Sequential(*layers).eval()


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def _agrees(found, estimate, deviations=5.0):
    """The moments are within the standard errors of the Monte Carlo estimate."""
    assert (found.loc - estimate.loc).abs().div(estimate.loc_error).max() < deviations
    assert (found.variance - estimate.variance).abs().div(estimate.variance_error).max() < deviations


@dataclasses.dataclass
class Pair:
    first: object
    count: int


# Methods and families


def test_ap1_is_the_plain_network():
    model = _model()
    y = propagate(model, X, method="ap1", input_variance=0.5)
    assert type(y) is Mean
    assert torch.equal(y.loc, model(X))


@pytest.mark.parametrize(("family", "kind"), [("normal", Normal), ("logistic", Logistic), ("fitted", Fitted)])
def test_ap2_is_the_model_of_a_value_of_the_family(family, kind):
    model = _model()
    y, wanted = propagate(model, X, family=family, input_variance=0.1, covariance=False), model(kind(X, 0.1))
    assert type(y) is kind
    assert torch.equal(y.loc, wanted.loc)
    assert torch.equal(y.variance, wanted.variance)


def test_many_draws_agree_with_an_independent_loop():
    layer = nn.Linear(4, 3)
    estimate = propagate(layer, X, method="sample", input_variance=0.2, samples=20_000, seed=0)
    assert type(estimate) is Estimate
    _agrees(layer(Normal(X, 0.2)), estimate)  # exact for one linear layer


def test_the_standard_errors_are_those_of_repeated_estimates():
    runs = [
        propagate(nn.Softplus(), X, method="sample", input_variance=0.2, samples=200, seed=seed) for seed in range(300)
    ]
    for name in ("loc", "variance"):
        spread = torch.stack([getattr(run, name) for run in runs]).std(0)
        stated = torch.stack([getattr(run, f"{name}_error") for run in runs]).mean(0)
        torch.testing.assert_close(stated, spread, rtol=0.2, atol=0)


def test_a_seed_makes_draws_repeatable_and_leaves_the_generator_alone():
    model = _model()
    before = torch.get_rng_state()
    first, second = (
        propagate(model, X, method="sample", input_variance=0.1, dropout=True, samples=50, seed=7) for _ in range(2)
    )
    assert torch.equal(first.loc, second.loc)
    assert torch.equal(first.variance, second.variance)
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_are_the_same_law_in_chunks_and_one_by_one(monkeypatch):
    model = _model()
    together = propagate(model, X, method="sample", input_variance=0.1, dropout=True, samples=1500, seed=0)
    monkeypatch.setattr(momentprop.sampling, "MEMORY", 0)
    singly = propagate(model, X, method="sample", input_variance=0.1, dropout=True, samples=1500, seed=0)
    error = (together.loc_error**2 + singly.loc_error**2).sqrt()
    assert ((together.loc - singly.loc).abs() < 5 * error).all()
    error = (together.variance_error**2 + singly.variance_error**2).sqrt()
    assert ((together.variance - singly.variance).abs() < 5 * error).all()


class DataDependent(nn.Module):
    def forward(self, x):
        return x * 2 if x.loc.sum() > 0 else x


def test_a_model_that_cannot_be_vectorized_is_drawn_one_by_one():
    y = propagate(DataDependent(), X + 100, method="sample", input_variance=1.0, samples=2000, seed=0)
    _agrees(Normal(2 * X + 200, 4.0), y)


def test_one_draw_is_the_model_of_a_sample():
    model = _model()
    assert torch.equal(model(Sample(X)).loc, model(X))


# Arguments


def test_a_value_is_converted_to_the_kind_of_the_method():
    model = _model()
    x = Normal(X, 0.1)
    assert torch.equal(propagate(model, x, method="ap1").loc, model(X))
    assert torch.equal(propagate(model, x, covariance=False).variance, model(x).variance)
    assert type(propagate(model, x, family="fitted", covariance=False)) is Fitted
    estimate = propagate(nn.Linear(4, 2), x, method="sample", samples=10)
    assert (estimate.variance > 0).all()


@pytest.mark.parametrize("method", ["ap2", "sample"])
def test_a_value_given_twice_remains_one(method):
    x = Normal(X, 1.0)
    y = propagate(lambda a, b: a - b, x, x, method=method, samples=10, covariance=False)
    assert torch.equal(y.variance, torch.zeros_like(X))


def test_what_moves_elements_of_a_plain_tensor_leaves_it_plain():
    kinds = []

    def model(x):
        moved = torch.ones(6).unflatten(0, (2, 3))
        kinds.append(type(moved))
        return x

    propagate(model, X, input_variance=0.1, covariance=False)
    assert kinds == [torch.Tensor]


def test_an_input_variance_may_differ_between_elements():
    variance = torch.rand(4)
    y = propagate(nn.Identity(), X, input_variance=variance, covariance=False)
    assert torch.equal(y.variance, variance.expand_as(X))


class Keywords(nn.Module):
    def forward(self, ids, scale=None, *, mask=None):
        return {"scaled": ids.to(scale.dtype) * scale, "mask": mask}


def test_the_variance_goes_to_the_first_floating_point_argument():
    ids, scale = torch.tensor([1, 2]), torch.tensor([3.0, 4.0])
    y = propagate(Keywords(), ids, scale=scale, mask=torch.tensor([True]), input_variance=0.5, covariance=False)
    assert y["scaled"].loc.tolist() == [3, 8]
    assert y["scaled"].variance.tolist() == [0.5, 2.0]
    assert y["mask"].tolist() == [True]


def test_input_variance_needs_a_tensor_and_no_value():
    with pytest.raises(TypeError, match="an argument is a Normal, which has its own noise"):
        propagate(nn.ReLU(), Normal(X, 0.1), input_variance=0.1, covariance=False)
    with pytest.raises(TypeError, match=r"needs a floating-point tensor, but the argument is a tensor of torch.int64"):
        propagate(nn.Embedding(3, 2), torch.tensor([1]), input_variance=0.1, covariance=False)
    with pytest.raises(TypeError, match=r"but the arguments are a tensor of torch.int64 and a float: write `x.float"):
        propagate(nn.ReLU(), torch.tensor([1]), [1.0], input_std=0.1)
    with pytest.raises(
        TypeError, match=r"was given, but no argument for the model: write `propagate\(model, x, ...\)`"
    ):
        propagate(nn.ReLU(), input_std=0.1)


def test_noise_in_numpy_is_refused_by_name():
    noise = torch.full((3,), 0.1).numpy()
    with pytest.raises(TypeError, match="variance must be a tensor or a number, but is a numpy array: write"):
        propagate(nn.ReLU(), torch.ones(3), input_variance=noise)
    with pytest.raises(TypeError, match="input_std must be a tensor or a number, but is a numpy array: write"):
        propagate(nn.ReLU(), torch.ones(3), input_std=noise)


def test_unknown_names_and_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="unknown method 'ap3': choose 'ap1', 'ap2', 'sample', 'full' or 'linear'"):
        propagate(nn.ReLU(), X, method="ap3", covariance=False)
    with pytest.raises(ValueError, match="unknown method 'joint': write `covariance=True`, or choose"):
        propagate(nn.ReLU(), X, method="joint", input_variance=0.1)  # as `check` calls it
    with pytest.raises(ValueError, match="unknown family 'gauss'"):
        propagate(nn.ReLU(), X, family="gauss", covariance=False)
    with pytest.raises(ValueError, match="unknown fallback 'guess': choose one of 'quadrature', 'monte_carlo'"):
        propagate(nn.ReLU(), X, fallback="guess", covariance=False)
    with pytest.raises(ValueError, match="at least 2 samples, but samples is 1"):
        propagate(nn.ReLU(), X, method="sample", samples=1)
    with pytest.raises(ValueError, match="variance must be non-negative"):
        propagate(nn.ReLU(), X, input_variance=-1.0, covariance=False)


torch.utils._pytree.register_dataclass(Pair)


def test_the_output_keeps_its_structure():
    def model(x):
        return Pair(first=(torch.relu(x), None), count=3), [torch.ones(2)], torch.tensor([1])

    for method, kind in (("ap1", Mean), ("ap2", Normal), ("sample", Estimate)):
        pair, (ones,), index = propagate(model, X, method=method, input_variance=0.1, samples=5, covariance=False)
        assert type(pair.first[0]) is kind
        assert pair.first[1] is None
        assert pair.count == 3
        assert type(ones) is kind
        assert ones.loc.tolist() == [1, 1]
        assert index.tolist() == [1]


# Dropout and other noise


class FunctionalDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.25, self.training)


@pytest.mark.parametrize("layer", [nn.Dropout(0.25), FunctionalDropout()], ids=["module", "functional"])
def test_dropout_acts_in_eval_mode_on_request(layer):
    layer.eval()
    assert torch.equal(propagate(layer, X, input_variance=0.0, covariance=False).variance, torch.zeros_like(X))
    y = propagate(layer, X, dropout=True, covariance=False)
    torch.testing.assert_close(y.variance, X**2 / 3)
    assert torch.equal(y.loc, X)
    assert torch.equal(propagate(layer, X, method="ap1", dropout=True).loc, X)
    drawn = propagate(layer, X, method="sample", dropout=True, samples=20_000, seed=0)
    _agrees(y, drawn)


def test_dropout_meets_a_plain_tensor_inside_the_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 8), nn.Dropout(0.2), nn.Linear(8, 2)).eval()
    ids = torch.tensor([[1, 2, 3]])
    _agrees(
        propagate(model, ids, dropout=True, covariance=False),
        propagate(model, ids, dropout=True, method="sample", samples=20_000, seed=0),
    )


def test_attention_dropout_acts_on_plain_tensors():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    y, _ = propagate(attention, x, x, x, dropout=True, need_weights=False, covariance=False)
    drawn, _ = propagate(attention, x, x, x, dropout=True, need_weights=False, method="sample", samples=4000, seed=0)
    assert (y.loc - drawn.loc).abs().div(drawn.loc_error).max() < 5
    ratio = (y.variance / drawn.variance).log().mean().exp()
    assert 0.9 < ratio < 1.1


def test_noise_of_our_own_meets_plain_tensors():
    noise = torch.distributions.Laplace(0.0, 1.0)

    def model(x):
        return momentprop.functional.add_noise(x, noise, training=False)

    assert torch.equal(propagate(model, X, method="ap1").loc, X)
    assert torch.equal(propagate(model, X, covariance=False).variance, torch.full_like(X, 2.0))
    drawn = propagate(model, X, method="sample", samples=1000, seed=0)
    _agrees(Normal(X, 2.0), drawn)
    assert torch.equal(model(X), X)  # nothing remains behind


def test_a_random_weight_is_converted_to_the_kind_of_the_method():
    class Bayesian(nn.Module):
        def forward(self, x):
            return F.linear(x, Normal(torch.ones(1, 4), 0.5))

    x = torch.ones(1, 4)
    assert propagate(Bayesian(), x, method="ap1").loc.tolist() == [[4.0]]
    assert propagate(Bayesian(), x, input_variance=0.0, covariance=False).variance.tolist() == [[2.0]]
    _agrees(Normal(torch.tensor([[4.0]]), 2.0), propagate(Bayesian(), x, method="sample", samples=1000, seed=0))


def test_numbers_drawn_by_the_model_itself_are_pointed_out():
    def model(x):
        return x + torch.rand(4)

    with pytest.warns(UserWarning, match="the model draws random numbers with 'rand' at top level"):
        propagate(model, X, input_variance=0.1, covariance=False)
    with pytest.warns(
        UserWarning, match="with 'rand_like' at top level; a pass with Mean values treats them as constants"
    ):
        propagate(lambda x: x + torch.rand_like(x), X, method="ap1", input_variance=0.1)
    propagate(model, X, method="sample", input_variance=0.1, samples=3)


# What is left behind


def _state(model):
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        [module.training for module in model.modules()],
        [len(module._forward_hooks) for module in model.modules()],
    )


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
def test_the_network_is_left_as_it_was(method):
    model = _model()
    model[0].train()
    before = _state(model)
    propagate(model, X, method=method, input_variance=0.1, dropout=True, record=True, samples=5, covariance=False)
    after = _state(model)
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=0)
    assert after[1:] == before[1:]


def test_the_network_is_left_as_it_was_after_an_error():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)).eval()
    before = _state(model)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        propagate(model, torch.ones(2, 3), input_variance=0.1, dropout=True, record=True, covariance=False)
    assert _state(model)[1:] == before[1:]
    assert momentprop.dispatch.context.current() is None


def test_training_updates_running_statistics_as_a_plain_forward():
    model = _model().train()
    plain = copy.deepcopy(model)
    plain(X)
    propagate(model, X, method="ap1")
    torch.testing.assert_close(model[1].running_mean, plain[1].running_mean)
    torch.testing.assert_close(model[1].running_var, plain[1].running_var)


# Together with the rest of torch


def test_gradients_reach_all_parameters():
    model = _model()
    y = propagate(model, X, input_variance=0.1, dropout=True, covariance=False)
    (y.loc.square().sum() + y.variance.sum()).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("options", [{"input_variance": 0.1}, {"dropout": True}], ids=["input", "dropout"])
def test_it_compiles_as_a_whole(options):
    torch.compiler.reset()
    model = _model()
    compiled = torch.compile(
        lambda x: propagate(model, x, **options, covariance=False), fullgraph=True, backend="aot_eager"
    )
    found, wanted = compiled(X), propagate(model, X, **options, covariance=False)
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.variance, wanted.variance)


def test_an_error_after_an_interrupt_of_the_caller_stays_an_error():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(ValueError, match="unknown method"):
            propagate(nn.ReLU(), torch.ones(2), method="ap3", covariance=False)


class _Store:
    def __init__(self, *tensors):
        self.tensors = list(tensors)


def _appends(x, store):
    store.tensors.append(x)
    return torch.stack(store.tensors).sum(0)


def test_draws_do_not_share_what_a_model_writes_into_an_object():
    full, empty = _Store(torch.ones(2)), _Store()
    found = propagate(_appends, torch.zeros(2), full, input_variance=1.0, method="sample", samples=400, seed=0)
    assert (found.loc - 1).abs().max() < 0.3
    assert len(full.tensors) == 1
    with pytest.raises(RuntimeError, match="the model wrote into the _Store it was given"):
        propagate(_appends, torch.zeros(2), empty, input_variance=1.0, method="sample", samples=4)


def test_the_number_of_draws_is_told_where_nothing_draws():
    with pytest.raises(ValueError, match="samples=100 has an effect only on draws: write `method='sample'`"):
        propagate(nn.ReLU(), X, input_variance=0.1, samples=100)
    with pytest.raises(ValueError, match="family='logistic' is for method='ap2', not for 'sample'"):
        propagate(nn.ReLU(), X, input_variance=0.1, method="sample", family="logistic")
