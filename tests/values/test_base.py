"""Values behave as tensors do everywhere torch looks for tensors."""

import copy
import dataclasses
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from momentprop import Categorical, Logistic, Mean, Normal, Sample
from momentprop.dispatch import MissingRule
from momentprop.values import Value
from momentprop.values.base import may_look_at
from tests.values.every import FAMILIES, assert_same, every_family


def _values() -> list[Value]:
    loc, variance = torch.tensor([[0.0, 1.0, -2.0], [3.0, 4.0, 5.0]]), torch.tensor([[0.5, 1.0, 2.0], [0.0, 1.0, 3.0]])
    return [*(family(loc, variance) for family in FAMILIES), Mean(loc), Sample(loc), Categorical(loc)]


every_value = pytest.mark.parametrize("value", _values(), ids=lambda value: type(value).__name__)


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
    assert_same(pickle.loads(pickle.dumps(value)), value)
    assert_same(copy.copy(value), value)
    twin = copy.deepcopy(value)
    assert_same(twin, value)
    assert getattr(twin, twin.components[0]).data_ptr() != getattr(value, value.components[0]).data_ptr()


@every_value
def test_safe_saving_and_loading(value):
    file = io.BytesIO()
    torch.save({"value": value}, file)
    file.seek(0)
    assert_same(torch.load(file, weights_only=True)["value"], value)


@every_value
def test_a_value_is_a_pytree(value):
    leaves, tree = pytree.tree_flatten([value])
    assert len(leaves) == len(value.components)
    (rebuilt,) = pytree.tree_unflatten(leaves, tree)
    assert_same(rebuilt, value)
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


def _value(*sizes: int, seed: int) -> Normal:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(sizes, generator=generator, dtype=torch.float64)
    return Normal(mean, torch.rand(sizes, generator=generator, dtype=torch.float64))


def test_undefined_elements_of_mean_or_variance_are_found() -> None:
    x = Normal(torch.tensor([0.0, float("nan"), 1.0]), torch.tensor([1.0, 1.0, float("inf")]), validate_args=False)
    assert torch.isnan(x).tolist() == [False, True, False]
    assert x.isinf().tolist() == [False, False, True]
    assert torch.isfinite(x).tolist() == [True, False, False]


def test_a_comparison_with_a_random_value_is_not_answered() -> None:
    x = _value(3, 4, seed=1)
    for compare in (lambda: x == 0, lambda: x != x.loc, lambda: x == x):
        with pytest.raises(MissingRule, match=r"the outcome of '(eq|ne)' on a random Normal"):
            compare()
    assert (x == None) is False  # noqa: E711 (what is tested)
    assert (x != "text") is True
    assert x in [x]
    assert (Mean(torch.tensor([1.0, 2.0])) == 1).tolist() == [True, False]


def test_a_value_answers_what_modules_ask_of_a_tensor() -> None:
    x = Normal(torch.ones(2, 3, requires_grad=True), 0.5)
    assert x.type() == "torch.FloatTensor"
    assert x.type(torch.float64).variance.dtype == torch.float64
    assert (x.itemsize, x.element_size(), x.ndimension(), x.get_device(), x.storage_offset()) == (4, 4, 2, -1, 0)
    assert x.is_signed()
    assert not x.is_mps
    assert x.requires_grad
    assert not x.data.requires_grad
