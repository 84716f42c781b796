"""One way in: an operation enters the mode once, however it is spelled, and its arguments are searched once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from examples.factors import Factors
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import momentprop
from momentprop import Categorical, Estimate, Fitted, Logistic, Mean, Normal, Sample, Statistics, functional, propagate
from momentprop import mode as mode_module
from momentprop.dispatch import Call
from momentprop.dispatch import dispatcher as dispatcher_module
from momentprop.dispatch.operand import values_in
from momentprop.mode import Propagation

W = torch.linspace(-1.0, 1.0, 12).reshape(4, 3)
WT, DIVISOR = W.T.contiguous(), Normal(torch.ones(4), 0.01)
KERNEL = torch.linspace(-1.0, 1.0, 18).reshape(1, 2, 3, 3)


def _normal(*shape: int) -> Normal:
    generator = torch.Generator().manual_seed(0)
    return Normal(torch.randn(shape, generator=generator), torch.rand(shape, generator=generator))


def _add_in_place(x: Any) -> Any:
    x += 1
    return x


def _write(x: Any) -> Any:
    x[0] = 1.0
    return x


def _set(x: Any, index: Any, new: Any) -> Any:
    x[index] = new
    return x


ENTRIES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "F.softmax": (lambda x: F.softmax(x, -1), (3, 4)),
    "x.softmax": (lambda x: x.softmax(-1), (3, 4)),
    "torch.softmax": (lambda x: torch.softmax(x, -1), (3, 4)),
    "x + y": (lambda x: x + WT, (3, 4)),
    "y + x": (lambda x: WT + x, (3, 4)),
    "x + x": (lambda x: x + x, (3, 4)),
    "x.relu_()": (lambda x: x.relu_(), (3, 4)),
    "F.relu": (F.relu, (3, 4)),
    "F.relu in place": (lambda x: F.relu(x, inplace=True), (3, 4)),
    "nn.ReLU": (nn.ReLU(), (3, 4)),
    "F.conv2d": (lambda x: F.conv2d(x, KERNEL, padding=1), (1, 2, 4, 4)),
    "F.linear": (lambda x: F.linear(x, WT), (3, 4)),
    "x @ w": (lambda x: x @ W, (3, 4)),
    "w @ x": (lambda x: W @ x, (3, 4)),
    "x[0]": (lambda x: x[0], (3, 4)),
    "x += 1": (_add_in_place, (3, 4)),
    "x[0] = 1": (_write, (3, 4)),
    "-x": (lambda x: -x, (3, 4)),
    "2 - x": (lambda x: 2 - x, (3, 4)),
    "x.sum": (lambda x: x.sum(0), (3, 4)),
    "x.T": (lambda x: x.T, (3, 4)),
    "torch.cat": (lambda x: torch.cat([x, x]), (3, 4)),
    "F.max_pool2d": (lambda x: F.max_pool2d(x, 2), (1, 2, 4, 4)),
    "F.layer_norm": (lambda x: F.layer_norm(x, (4,)), (3, 4)),
    "F.dropout": (lambda x: F.dropout(x, 0.3), (3, 4)),
    "torch.var": (torch.var, (3, 4)),
    "x / y": (lambda x: x / DIVISOR, (3, 4)),
    "stochastic_binary": (functional.stochastic_binary, (3, 4)),
    "binary_step": (functional.binary_step, (3, 4)),
}


# rules that make calls of their own: of the kind (`matmul`), without constants (`cat`), of other operations
AGAIN = ("x / y", "binary_step", "x @ w", "w @ x", "torch.cat")


class Counts:
    """How often the mode was entered, and how often arguments were searched."""

    entered = 0
    searched = 0


@contextmanager
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    counts, run, make = Counts(), Propagation.run, Call.__init__

    def counted_run(self: Propagation, *args: Any) -> Any:
        counts.entered += 1
        return run(self, *args)

    def counted_search(args: Any, kwargs: Any) -> list[Any]:
        counts.searched += 1
        return values_in(args, kwargs)

    def counted_call(self: Call, operation: Any, args: Any, kwargs: Any, values: Any = None) -> None:
        counts.searched += values is None
        make(self, operation, args, kwargs, values)

    monkeypatch.setattr(Propagation, "run", counted_run)
    monkeypatch.setattr(Call, "__init__", counted_call)
    for module in (mode_module, dispatcher_module):
        monkeypatch.setattr(module, "values_in", counted_search)
    yield counts


@pytest.mark.parametrize("name", ENTRIES)
def test_an_operation_enters_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shape = ENTRIES[name]
    with _counted(monkeypatch) as counts:
        propagate(function, _normal(*shape), covariance=False)
    assert counts.entered == 1
    assert counts.searched == 1 or name in AGAIN


def test_plain_operations_enter_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with _counted(monkeypatch) as counts, pytest.warns(momentprop.NothingRandomWarning):
        propagate(lambda x: torch.relu(x) + 1, W, covariance=False)
    assert (counts.entered, counts.searched) == (2, 2)


def test_a_network_enters_once_for_each_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Softmax(-1))
    with _counted(monkeypatch) as counts:
        propagate(model, _normal(1, 2, 6, 6), covariance=False)
    assert (counts.entered, counts.searched) == (5, 5)


# other modes around and inside


class Seen(TorchFunctionMode):
    """A mode that lets everything pass."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


METHODS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "add": lambda x: x + 1,
    "radd": lambda x: 1 + x,
    "matmul": lambda x: x @ W,
    "rmatmul": lambda x: W @ x,
    "getitem": lambda x: x[0],
    "relu_": lambda x: x.relu_(),
    "iadd": _add_in_place,
    "setitem": _write,
    "view": lambda x: x.view(-1),
    "to": lambda x: x.to(torch.float64),
    "binary": functional.binary_step,
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("inside", [False, True], ids=["directly", "by propagate"])
def test_methods_work_under_another_mode(name: str, inside: bool) -> None:
    function = METHODS[name]
    expected = function(_normal(3, 4))
    with Seen() as seen:
        found = propagate(function, _normal(3, 4), covariance=False) if inside else function(_normal(3, 4))
    _assert_identical(found, expected)
    assert inside or seen.names
    with torch.device("cpu"):
        _assert_identical(
            propagate(function, _normal(3, 4), covariance=False) if inside else function(_normal(3, 4)), expected
        )


def test_a_mode_inside_the_model_is_let_through() -> None:
    def model(x: Any) -> Any:
        with Seen():
            return (x @ W).softmax(-1)

    _assert_identical(propagate(model, _normal(3, 4), covariance=False), (_normal(3, 4) @ W).softmax(-1))


def test_a_default_device_does_not_break_methods() -> None:
    torch.set_default_device("cpu")
    try:
        _assert_identical(
            propagate(lambda x: x.softmax(-1) + x[0], _normal(3, 4), covariance=False), _shifted(_normal(3, 4))
        )
    finally:
        torch.set_default_device(None)


def _shifted(x: Any) -> Any:
    return x.softmax(-1) + x[0]


# spellings


def _assert_identical(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    for name in found.components:
        assert torch.equal(getattr(found, name), getattr(expected, name))


SPELLINGS: dict[str, list[Callable[[Any], Any]]] = {
    "relu": [
        torch.relu, F.relu, lambda x: x.relu(), lambda x: x.relu_(), torch.relu_,
        lambda x: F.relu(x, inplace=True), nn.ReLU(), nn.ReLU(inplace=True),
    ],
    "softmax": [
        lambda x: F.softmax(x, -1), lambda x: x.softmax(-1), lambda x: torch.softmax(x, -1),
        lambda x: F.softmax(x, dim=1), nn.Softmax(-1),
    ],
    "add": [
        lambda x: x + 2, lambda x: 2 + x, lambda x: torch.add(x, other=2), lambda x: torch.add(x, 2),
        lambda x: x.add(2), lambda x: x.add_(2), lambda x: x.__iadd__(2), lambda x: x.__radd__(2),
    ],
    "sub": [
        lambda x: x - W.T, lambda x: torch.sub(x, W.T), lambda x: x.subtract(W.T), lambda x: x.sub_(W.T),
        lambda x: torch.subtract(x, other=W.T),
    ],
    "mul": [
        lambda x: x * W.T, lambda x: W.T * x, lambda x: torch.mul(x, W.T), lambda x: x.multiply(W.T),
        lambda x: x.mul_(W.T), lambda x: x.__imul__(W.T),
    ],
    "div": [
        lambda x: x / 3, lambda x: torch.div(x, 3), lambda x: x.true_divide(3), lambda x: x.div_(3),
        lambda x: torch.divide(x, 3),
    ],
    "neg": [lambda x: -x, torch.neg, lambda x: x.negative(), lambda x: x.neg_()],
    "pow": [lambda x: x**2, lambda x: torch.pow(x, 2), lambda x: x.pow(2), lambda x: x.pow_(2)],
    "matmul": [lambda x: x @ W, lambda x: torch.matmul(x, W), lambda x: x.matmul(W), lambda x: W.__rmatmul__(x)],
    "getitem": [lambda x: x[1], lambda x: x.select(0, 1), lambda x: x.__getitem__(1)],
    "reshape": [lambda x: x.reshape(4, 3), lambda x: torch.reshape(x, (4, 3)), lambda x: x.view(4, 3)],
    "transpose": [lambda x: x.T, lambda x: x.t(), lambda x: x.transpose(0, 1), lambda x: x.mT, torch.t,
                  lambda x: torch.swapaxes(x, 0, 1)],
    "setitem": [_write, lambda x: _set(x, 0, 1), lambda x: _set(x, (0, ...), torch.ones(4))],
    "clamp": [lambda x: torch.clamp(x, 0.0, 1.0), lambda x: x.clip(0.0, 1.0), lambda x: x.clamp_(min=0.0, max=1.0)],
}  # fmt: skip


@pytest.mark.parametrize("op", SPELLINGS)
def test_all_spellings_are_identical(op: str) -> None:
    expected = SPELLINGS[op][0](_normal(3, 4))
    for spelling in SPELLINGS[op]:
        _assert_identical(spelling(_normal(3, 4)), expected)
        _assert_identical(propagate(spelling, _normal(3, 4), covariance=False), expected)


# the type of a value


def _factors() -> Factors:
    return Factors(W.T, 0.1, 0.3 * torch.ones(2, 3, 4))


VALUES = {
    "Mean": lambda: Mean(W.T),
    "Sample": lambda: Sample(W.T),
    "Normal": lambda: Normal(W.T, 0.1),
    "Logistic": lambda: Logistic(W.T, 0.1),
    "Fitted": lambda: Fitted(W.T, 0.1),
    "Statistics": lambda: Statistics(W[:, 0], torch.ones(4)),
    "Factors": _factors,
}


@pytest.mark.parametrize("name", VALUES)
def test_propagate_keeps_the_type(name: str) -> None:
    x = VALUES[name]()
    layer = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    found = propagate(layer, x, covariance=False)
    assert type(found) is type(x)
    _assert_identical(found, layer(x))


@pytest.mark.parametrize("name", VALUES)
def test_propagate_keeps_the_type_of_a_keyword(name: str) -> None:
    assert type(propagate(lambda *, x: x["here"] + 1, x={"here": VALUES[name]()}, covariance=False)) is type(
        VALUES[name]()
    )


@pytest.mark.parametrize(
    ("given", "options", "wanted"),
    [
        (Normal, {"method": "ap1"}, Mean),
        (Normal, {"method": "sample", "samples": 3}, Estimate),
        (Normal, {"family": "logistic"}, Logistic),
        (Logistic, {"method": "ap2"}, Normal),
        (Logistic, {"family": "fitted"}, Fitted),
        (Mean, {"method": "ap2"}, Normal),
    ],
)
def test_a_method_or_family_converts(given: Any, options: Any, wanted: type) -> None:
    x = given(W.T) if given is Mean else given(W.T, 0.1)
    found = propagate(nn.Linear(4, 2), x, **options, covariance=False)
    assert type(found) is wanted


def test_an_estimate_becomes_a_normal_by_method() -> None:
    estimate = propagate(nn.Identity(), Normal(W.T, 0.1), method="sample", samples=10, seed=0)
    found = propagate(nn.ReLU(), estimate, method="ap2", covariance=False)
    _assert_identical(found, torch.relu(Normal(estimate.loc, estimate.variance)))


def test_two_types_raise() -> None:
    with pytest.raises(TypeError, match="a Normal and a Logistic: choose how to run it"):
        propagate(torch.add, Normal(W, 0.1), Logistic(W, 0.1), covariance=False)
    with pytest.raises(TypeError, match="a Factors and a Mean"):
        propagate(torch.add, _factors(), Mean(W.T), covariance=False)


def test_results_raise() -> None:
    estimate = propagate(nn.Identity(), Normal(W, 0.1), method="sample", samples=3)
    with pytest.raises(TypeError, match="the Estimate is a result and cannot enter a model: write `method='ap2'`"):
        propagate(nn.Linear(3, 2), estimate, covariance=False)
    categorical = F.log_softmax(Normal(W, 0.1), -1)
    assert type(categorical) is Categorical
    with pytest.raises(TypeError, match="the Categorical is a result and cannot enter a model"):
        propagate(nn.Linear(3, 2), categorical, covariance=False)


def test_a_type_that_cannot_be_made_raises() -> None:
    """A random weight of another type inside the model is not taken for something else."""
    weight = Normal(W.T, 0.1)
    with pytest.raises(TypeError, match="a Normal cannot be converted to a Factors"):
        propagate(lambda x: x @ weight.T, _factors(), covariance=False)


def test_the_public_names_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert momentprop.propagate is propagate
    x: Tensor = W
    with _counted(monkeypatch) as counts, pytest.warns(momentprop.NothingRandomWarning):
        propagate(lambda y: y, x, covariance=False)
    assert (counts.entered, counts.searched) == (0, 0)
