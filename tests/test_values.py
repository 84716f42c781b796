"""Values are checked once, at the door, and then behave as tensors do everywhere torch looks for tensors."""

import copy
import dataclasses
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import momentprop
from momentprop import Categorical, Fitted, Logistic, Mean, Normal, Sample
from momentprop.values import Value
from momentprop.values.base import may_look_at

FAMILIES = [Normal, Logistic, Fitted]
every_family = pytest.mark.parametrize("family", FAMILIES)


def _values() -> list[Value]:
    loc, variance = torch.tensor([[0.0, 1.0, -2.0], [3.0, 4.0, 5.0]]), torch.tensor([[0.5, 1.0, 2.0], [0.0, 1.0, 3.0]])
    return [*(family(loc, variance) for family in FAMILIES), Mean(loc), Sample(loc), Categorical(loc)]


every_value = pytest.mark.parametrize("value", _values(), ids=lambda value: type(value).__name__)


def _assert_same(found: Value, wanted: Value) -> None:
    assert type(found) is type(wanted)
    for name in wanted.components:
        assert torch.equal(getattr(found, name), getattr(wanted, name))


# Construction


def test_a_number_is_a_variance_for_all():
    x = Normal(torch.zeros(2, 3, dtype=torch.float64), 2)
    assert torch.equal(x.variance, torch.full((2, 3), 2.0, dtype=torch.float64))


def test_a_variance_broadcasts_to_a_tensor_of_its_own():
    variance = torch.tensor([1.0, 2.0, 3.0])
    x = Normal(torch.zeros(2, 3), variance)
    assert torch.equal(x.variance, variance.expand(2, 3))
    assert x.variance.is_contiguous()
    assert Normal(torch.zeros(2, 3), torch.tensor(0.5)).variance.shape == (2, 3)


def test_numbers_make_a_scalar_value():
    x = Normal(1.5, 0.5)
    assert x.shape == ()
    assert (x.loc.item(), x.variance.item()) == (1.5, 0.5)


def test_the_given_tensors_are_kept_with_their_gradients():
    loc, variance = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    x = Normal(loc, variance)
    assert x.loc is loc
    assert x.variance is variance
    assert x.requires_grad
    assert not Normal(torch.zeros(3), 1.0).requires_grad


@pytest.mark.parametrize("make", [Mean, Sample, Categorical, lambda loc: Normal(loc, 1.0)])
def test_an_integer_tensor_is_refused(make):
    with pytest.raises(TypeError, match=r"must be floating-point, but is torch.int64: write `(loc|logits).float\(\)`"):
        make(torch.arange(3))


def test_a_value_is_refused_in_place_of_a_component():
    x = Normal(torch.zeros(3), 1.0)
    with pytest.raises(TypeError, match="loc must be a tensor, but is already a Normal"):
        Normal(x, 1.0)
    with pytest.raises(TypeError, match="variance must be a tensor or a number, but is a Normal"):
        Normal(torch.zeros(3), x)
    with pytest.raises(TypeError, match="loc must be a tensor, but is already a Normal"):
        Mean(x)


def test_a_variance_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"variance of shape \(2,\) does not broadcast to loc of shape \(3,\)"):
        Normal(torch.zeros(3), torch.ones(2))
    with pytest.raises(ValueError, match=r"variance of shape \(2, 3\) does not broadcast to loc of shape \(3,\)"):
        Normal(torch.zeros(3), torch.ones(2, 3))


def test_a_variance_of_another_dtype_is_refused():
    with pytest.raises(
        TypeError, match=r"loc is torch.float32 but variance is torch.float64: write `variance.to\(loc.dtype\)`"
    ):
        Normal(torch.zeros(3), torch.ones(3, dtype=torch.float64))


def test_a_variance_on_another_device_is_refused():
    with pytest.raises(ValueError, match=r"loc is on cpu but variance on meta: write `variance.to\(loc.device\)`"):
        Normal(torch.zeros(3), torch.ones(3, device="meta"))


@every_family
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loc_that_is_not_finite_is_refused(family, bad):
    with pytest.raises(ValueError, match="loc must be finite, but has NaN or infinite elements"):
        family(torch.tensor([0.0, bad]), 1.0)


@every_family
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_variance_that_is_not_finite_is_refused(family, bad):
    with pytest.raises(ValueError, match="variance must be finite, but has NaN or infinite elements"):
        family(torch.zeros(2), torch.tensor([1.0, bad]))


@every_family
def test_a_negative_variance_is_refused(family):
    with pytest.raises(ValueError, match="variance must be non-negative, but has negative elements"):
        family(torch.zeros(2), torch.tensor([0.0, -1e-30]))


def test_checks_of_the_data_can_be_switched_off():
    bad = torch.tensor([-1.0, math.nan])
    Normal(bad, bad, validate_args=False)
    momentprop.set_default_validate_args(False)
    try:
        Normal(bad, bad)
        with pytest.raises(ValueError, match="must be finite"):
            Normal(bad, bad, validate_args=True)
    finally:
        momentprop.set_default_validate_args(True)
    with pytest.raises(ValueError, match="must be finite"):
        Normal(bad, bad)


def test_values_on_the_meta_device_are_not_looked_at():
    x = Normal(torch.zeros(3, device="meta"), 1.0)
    assert x.device.type == "meta"


# What a value shows of itself


@every_value
def test_a_value_answers_as_a_tensor(value):
    assert value.shape == (2, 3)
    assert value.size() == (2, 3)
    assert value.size(1) == 3
    assert value.dtype == torch.float32
    assert value.device == torch.device("cpu")
    assert (value.ndim, value.dim(), value.numel(), len(value)) == (2, 2, 6, 2)
    assert value.is_floating_point()
    assert not value.is_cuda


@pytest.mark.parametrize("value", _values()[:-1], ids=lambda value: type(value).__name__)
def test_iteration_gives_the_rows(value):
    rows = list(value)
    assert [row.shape for row in rows] == [(3,), (3,)]
    assert torch.equal(rows[1].loc, value.loc[1])


def test_the_repr_aligns_the_components():
    assert repr(Normal(torch.tensor([1.0]), 2.0)) == "Normal(loc=tensor([1.]),\n       variance=tensor([2.]))"
    lines = repr(Logistic(torch.zeros(2, 2), 1.0)).splitlines()
    assert lines[0] == "Logistic(loc=tensor([[0., 0.],"
    assert lines[1].lstrip().startswith("[0., 0.]]),")
    assert lines[2].startswith("         variance=tensor([[1., 1.],")
    assert repr(Mean(torch.zeros(1))) == "Mean(loc=tensor([0.]))"


def test_the_deviation_of_certainty_is_zero_with_a_finite_gradient():
    variance = torch.tensor([0.0, 4.0], requires_grad=True)
    stddev = Normal(torch.zeros(2), variance).stddev
    assert stddev.tolist() == [0.0, 2.0]
    stddev.sum().backward()
    assert variance.grad.tolist() == [0.0, 0.25]


@every_value
def test_control_flow_on_a_value_is_refused(value):
    with pytest.raises(TypeError, match=f"control flow on a random {type(value).__name__} at top level"):
        bool(value)


@every_value
def test_conversion_to_an_array_is_refused(value):
    with pytest.raises(TypeError, match=f"a {type(value).__name__} is not one array: convert a component"):
        np.asarray(value)


# Copies, files, trees


@every_value
def test_pickle_deepcopy_and_copy(value):
    _assert_same(pickle.loads(pickle.dumps(value)), value)
    _assert_same(copy.copy(value), value)
    twin = copy.deepcopy(value)
    _assert_same(twin, value)
    assert getattr(twin, twin.components[0]).data_ptr() != getattr(value, value.components[0]).data_ptr()


@every_value
def test_safe_saving_and_loading(value):
    file = io.BytesIO()
    torch.save({"value": value}, file)
    file.seek(0)
    _assert_same(torch.load(file, weights_only=True)["value"], value)


@every_value
def test_a_value_is_a_pytree(value):
    leaves, tree = pytree.tree_flatten([value])
    assert len(leaves) == len(value.components)
    (rebuilt,) = pytree.tree_unflatten(leaves, tree)
    _assert_same(rebuilt, value)
    with_keys, _ = pytree.tree_flatten_with_path(value)
    assert [pytree.keystr(path) for path, _ in with_keys] == [f".{name}" for name in value.components]


def test_rebuilding_a_pytree_checks_nothing():
    x = Normal(torch.zeros(2), 1.0)
    doubled = pytree.tree_map(lambda part: [part], x)
    assert isinstance(doubled, Normal)
    assert isinstance(doubled.loc, list)


@every_value
def test_a_value_is_a_dataclass(value):
    assert dataclasses.is_dataclass(value)
    assert tuple(field.name for field in dataclasses.fields(value)) == value.components


def test_values_are_not_compared_as_dataclasses():
    x = Normal(torch.zeros(2), 1.0)
    assert len({x, Normal(torch.zeros(2), 1.0)}) == 2


@every_family
def test_conversions_keep_the_family(family):
    x = family(torch.zeros(2, 3, requires_grad=True), 1.0)
    assert type(x.to(torch.float64)) is family
    assert x.to(torch.float64).variance.dtype == torch.float64
    assert x.double().loc.dtype == torch.float64
    assert not x.detach().requires_grad
    assert type(x[0, 1:]) is family
    assert x[0, 1:].shape == (2,)
    assert type(x + 1) is family


# Drawing and distributions


def _z_of_mean_and_variance(draws: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, fourth: float):
    """Standard scores of the empirical moments; `fourth` is the standardized fourth moment."""
    n = len(draws)
    centred = draws.double() - mean.double()
    return (
        centred.mean(0) / (variance.double() / n).sqrt(),
        (centred.square().mean(0) - variance.double()) / (variance.double() * math.sqrt((fourth - 1) / n)),
    )


@pytest.mark.parametrize(("family", "fourth"), [(Normal, 3.0), (Logistic, 4.2), (Fitted, 3.0)])
def test_draws_have_the_moments_of_the_value(family, fourth):
    x = family(torch.tensor([-1.0, 0.0, 30.0]), torch.tensor([0.25, 1.0, 9.0]))
    draws = x.sample(40_000, generator=torch.Generator().manual_seed(5))
    assert draws.shape == (40_000, 3)
    for z in _z_of_mean_and_variance(draws, x.loc, x.variance, fourth):
        assert (z.abs() < 5).all()


@every_family
def test_draws_are_reproducible_certain_and_single(family):
    x = family(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]))
    first, second = (x.sample(generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (2,)
    assert torch.equal(x.sample(7)[:, 0], torch.ones(7))


def test_a_logistic_draw_is_logistic():
    draws = Logistic(torch.zeros(1, dtype=torch.float64), math.pi**2 / 3).sample(
        100_000, generator=torch.Generator().manual_seed(2)
    )
    for level in (-4.0, -1.0, 0.0, 2.0):
        p = 1 / (1 + math.exp(-level))
        found = (draws < level).double().mean().item()
        assert abs(found - p) < 5 * math.sqrt(p * (1 - p) / len(draws))


def test_draws_of_certain_values_are_their_loc():
    for value in (Mean(torch.tensor([1.0, 2.0])), Sample(torch.tensor([1.0, 2.0]))):
        assert torch.equal(value.sample(), value.loc)
        assert torch.equal(value.sample(3), value.loc.expand(3, 2))


def test_draws_of_classes_have_their_probabilities():
    q = Categorical(torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]]).log())
    draws = q.sample(20_000, generator=torch.Generator().manual_seed(3))
    assert draws.shape == (20_000, 2)
    assert q.sample().shape == (2,)
    frequency = torch.stack([(draws == label).double().mean(0) for label in range(3)], dim=-1)
    assert ((frequency - q.loc).abs() < 5 * (q.variance / 20_000).sqrt()).all()


@every_family
def test_round_trip_through_a_distribution(family):
    x = family(torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64))
    back = family.from_distribution(x.distribution())
    assert type(back) is family
    torch.testing.assert_close(back.loc, x.loc)
    torch.testing.assert_close(back.variance, x.variance)


def test_the_logistic_distribution_has_its_density():
    x = Logistic(torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64))
    at = torch.tensor([0.3, -2.0], dtype=torch.float64)
    scale = (3 * x.variance).sqrt() / math.pi
    z = (at - x.loc) / scale
    density = torch.sigmoid(z) * torch.sigmoid(-z) / scale
    torch.testing.assert_close(x.distribution().log_prob(at).exp(), density)


def test_a_value_takes_the_moments_of_any_distribution():
    x = Normal.from_distribution(torch.distributions.Uniform(torch.zeros(2), torch.ones(2)))
    torch.testing.assert_close(x.variance, torch.full((2,), 1 / 12))


def test_categorical_round_trip_and_moments():
    q = Categorical(torch.tensor([[2.0, 0.0, 1.0]]))
    torch.testing.assert_close(q.loc.sum(-1), torch.ones(1))
    torch.testing.assert_close(q.variance, q.loc * (1 - q.loc))
    torch.testing.assert_close(q.stddev**2, q.variance)
    _assert_same(Categorical.from_distribution(q.distribution()), q)
    confident = Categorical(torch.tensor([0.0, -40.0]))
    assert confident.variance[1].item() == pytest.approx(math.exp(-40), rel=1e-5, abs=0)
    assert (confident.variance >= 0).all()


def test_the_base_has_no_draws():
    class Bare(Value):
        part: torch.Tensor

    with pytest.raises(NotImplementedError):
        Bare.of(torch.zeros(1)).sample()


# Transforms and compilation


def test_vmap_over_building_a_value_inside():
    def spread(loc, variance):
        return torch.relu(Normal(loc, variance))

    loc, variance = torch.randn(5, 3), torch.rand(5, 3)
    batched, whole = torch.func.vmap(spread)(loc, variance), spread(loc, variance)
    assert isinstance(batched, Normal)
    torch.testing.assert_close(batched.loc, whole.loc)
    torch.testing.assert_close(batched.variance, whole.variance)
    per_sample = torch.func.vmap(torch.func.grad(lambda m, v: spread(m, v).loc.sum()))(loc, variance)
    torch.testing.assert_close(per_sample, torch.special.ndtr(loc / variance.sqrt()), atol=1e-5, rtol=1e-5)


def test_vmap_and_jacobians_with_a_value_as_argument():
    x = Normal(torch.randn(5, 3, dtype=torch.float64), torch.rand(5, 3, dtype=torch.float64))
    batched = torch.func.vmap(torch.relu)(x)
    torch.testing.assert_close(batched.variance, torch.relu(x).variance)
    row = x[0]
    by_reverse, by_forward = (
        transform(lambda x: torch.relu(x).loc)(row) for transform in (torch.func.jacrev, torch.func.jacfwd)
    )
    assert isinstance(by_reverse, Normal)
    torch.testing.assert_close(by_reverse.loc, by_forward.loc)
    torch.testing.assert_close(by_reverse.variance, by_forward.variance)


def test_compiling_a_function_that_builds_and_returns_a_value():
    torch.compiler.reset()

    def build(loc, variance):
        return torch.relu(Normal(loc, variance))

    loc, variance = torch.randn(3, 4, requires_grad=True), torch.rand(3, 4)
    found = torch.compile(build, fullgraph=True, backend="aot_eager")(loc, variance)
    wanted = build(loc, variance)
    assert isinstance(found, Normal)
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.variance, wanted.variance)
    torch.testing.assert_close(torch.autograd.grad(found.loc.sum(), loc), torch.autograd.grad(wanted.loc.sum(), loc))


def test_a_module_takes_and_gives_values_in_and_out_of_dynamo():
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2))
    x = Normal(torch.randn(3, 4), 0.1)
    found, wanted = torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x)
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.variance, wanted.variance)


def test_no_check_looks_at_a_tensor_while_a_gpu_records(monkeypatch):
    with FakeTensorMode():  # which has devices that are not there
        variance = torch.empty(2, device="cuda")
        for records in (False, True):
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda records=records: records)
            assert may_look_at(variance, True) == (not records)
        assert may_look_at(torch.empty(2), True)
