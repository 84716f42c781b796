"""`torch.compile(fullgraph=True)` with values in and out gives what eager gives: for every rule, and in networks."""

import copy
import shutil
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from momentprop import Mean, Normal, Sample, Statistics, propagate, rules
from momentprop.dispatch import Rule
from momentprop.rules.statistics.shapes import ALONG
from momentprop.torch_compat import dynamo
from momentprop.values import Value
from tests.cases import CASES
from tests.examples import NOT_TRACED, REFUSED, Example, example
from tests.networks import ConvNet, ResidualBlock, TransformerBlock, mlp, trained_looking

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
TOGETHER = 20  # rules in one graph, to save time
ELEMENTWISE = {case.op for case in CASES}  # compiled one by one in tests/test_elementwise.py
TRACED = [
    row
    for row in rules.table()
    if row.op not in NOT_TRACED
    and row.op not in REFUSED
    and not (row.op in ELEMENTWISE and row.on is Normal)
    and not (row.op in ALONG and row.on is Statistics)  # these are the rules of Normal behind a check
]


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _compiled(function: Callable[..., Any], backend: str = "aot_eager") -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def _tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def _gradients(result: Any, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """By the leaves, of a sum of the floating-point results that weighs each differently."""
    reached = [part for part in _tensors(result) if part.requires_grad]
    if not reached:
        return []
    loss = sum((part.double() * (1 + part.double().detach())).sum() * (1 + i) for i, part in enumerate(reached))
    return list(torch.autograd.grad(loss, list(leaves), allow_unused=True))


def _assert_alike(function: Callable[[Any], Any], compiled: Callable[[Any], Any], given: Any) -> None:
    found = []
    for run in (compiled, function):
        torch.manual_seed(0)
        leaves = [part.detach().requires_grad_(part.requires_grad) for part in pytree.tree_leaves(given)]
        result = run(pytree.tree_unflatten(leaves, pytree.tree_structure(given)))
        found.append((result, _gradients(result, [leaf for leaf in leaves if leaf.requires_grad])))
    (ours, our_gradients), (eager, eager_gradients) = found
    assert [type(part) for part in _values(ours)] == [type(part) for part in _values(eager)]
    torch.testing.assert_close(_tensors(ours), _tensors(eager), **CLOSE)
    torch.testing.assert_close(our_gradients, eager_gradients, **CLOSE)


def _values(result: Any) -> list[Any]:
    return pytree.tree_leaves(result, is_leaf=lambda part: isinstance(part, Value))


def _groups() -> list[Any]:
    """Rules by the type of value, a graph's worth at a time."""
    kinds: dict[str, list[Rule]] = {}
    for row in TRACED:
        kinds.setdefault(row.on.__name__, []).append(row)
    return [
        pytest.param(some, id=f"{name}-{some[0].op}-to-{some[-1].op}")
        for name, rows in kinds.items()
        for some in (rows[first : first + TOGETHER] for first in range(0, len(rows), TOGETHER))
    ]


@pytest.mark.parametrize("group", _groups())
def test_every_rule_compiles_to_what_eager_gives(group: list[Rule]) -> None:
    examples: dict[str, Example] = {}
    for row in group:
        found = example(row.op, row.on)
        assert found is not None, f"no example of {row.op!r} on a {row.on.__name__}: add one to tests/examples.py"
        examples[row.op] = found
    values = {op: chosen.value(group[0].on) for op, chosen in examples.items()}

    def run(values: dict[str, Any]) -> dict[str, Any]:
        return {op: examples[op].call(value) for op, value in values.items()}

    _assert_alike(run, _compiled(run), values)


def test_no_rule_is_left_out_without_a_reason() -> None:
    ops = {row.op for row in rules.table()}
    assert set(NOT_TRACED) | REFUSED <= ops
    for op in REFUSED:
        row = next(row for row in rules.table() if row.op == op)
        with pytest.raises(ValueError, match="asked for indices"):
            row.function(Example(abs, (2, 3, 4)).value(Normal), 2)


# operators, which dynamo treats in its own way (see `momentprop.torch_compat.dynamo`)


def _added_to_a_view(x: Any, w: Tensor) -> Any:
    y = x[0]
    y += w[0]
    return x


def _divided_and_seen_by_another_name(x: Any, w: Tensor) -> Any:
    x = x.clone()
    y = x
    x /= w
    x -= w
    return y


def _multiplied_in_place(x: Any, w: Tensor) -> Any:
    y = x.clone().view(9)
    y *= w.view(9)
    y @= w.view(9, 1).expand(9, 9)
    return y


OPERATORS: dict[str, Callable[[Any, Tensor], Any]] = {
    "x @ w": lambda x, w: x @ w,
    "w @ x": lambda x, w: w @ x,
    "x @ y": lambda x, w: x @ x.flip(0),
    "x - w": lambda x, w: [x - w, w - x, 2 - x, x - 2],
    "x / w": lambda x, w: [x / w, x / 2],
    "x ** 2": lambda x, w: [x**2, 2**x],
    "x += w": _added_to_a_view,
    "x /= w": _divided_and_seen_by_another_name,
    "x *= w": _multiplied_in_place,
    "tuples": lambda x, w: [torch.cat((x, w)), torch.stack((w, x)), torch.cat((x, x), 1)],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_between_values_and_tensors_compile_to_what_eager_gives(name: str) -> None:
    w = torch.arange(1.0, 10.0).reshape(3, 3) / 9

    def run(x: Any) -> Any:
        return OPERATORS[name](x, w)

    _assert_alike(run, _compiled(run, "eager"), Normal(w.flip(1) - 0.4, w / 3))


def test_an_unknown_version_of_dynamo_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"momentprop does not know `torch._dynamo.variables.builtin` of this torch"):
        dynamo._repair("torch._dynamo.variables.builtin", types.ModuleType("other"))


# networks


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer": (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU()), (4, 6)),
    "mlp": (mlp, (4, 6)),
    "residual block": (lambda: ResidualBlock(3), (2, 3, 6, 6)),
    "convolutions": (ConvNet, (2, 3, 8, 8)),
    "transformer": (TransformerBlock, (2, 5, 8)),
}
QUICK = [("mlp", True), ("residual block", True)]


def _network(name: str, training: bool) -> tuple[nn.Module, Normal]:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    return trained_looking(build()).train(training), Example(abs, shape).value(Normal)


@pytest.mark.parametrize(
    ("name", "training"),
    [
        pytest.param(name, training, marks=() if (name, training) in QUICK else pytest.mark.full)
        for name in NETWORKS
        for training in (False, True)
    ],
)
def test_networks_compile_with_their_gradients_and_buffers(name: str, training: bool) -> None:
    model, x = _network(name, training)
    twin = copy.deepcopy(model)
    compiled = _compiled(twin)
    results = [run(x) for run in (compiled, model)]
    for result, run in zip(results, (twin, model), strict=True):
        assert type(result) is Normal
        (result.loc.square() + result.variance).sum().backward()
        assert all(parameter.grad is not None for parameter in run.parameters())
    ours, eager = (
        [*_tensors(result), *(p.grad for p in run.parameters()), *run.buffers()]
        for result, run in zip(results, (twin, model), strict=True)
    )
    torch.testing.assert_close(ours, eager, **CLOSE)


@pytest.mark.parametrize("kind", [Mean, Sample])
def test_the_other_methods_compile(kind: Any) -> None:
    model, x = _network("mlp", training=False)
    found = _compiled(model)(kind(x.loc))
    assert type(found) is kind
    torch.testing.assert_close(found.loc, model(x.loc), **CLOSE)


def test_propagate_compiles_with_dropout_from_a_plain_input() -> None:
    model, x = _network("mlp", training=False)

    def run(x: Tensor) -> Normal:
        return propagate(model, x, dropout=True)

    found, wanted = _compiled(run)(x.loc), run(x.loc)
    assert bool((wanted.variance > 0).all())
    torch.testing.assert_close(_tensors(found), _tensors(wanted), **CLOSE)


def test_in_place_operations_on_the_argument_are_seen_outside() -> None:
    def run(x: Any) -> Any:
        y = x.relu_()
        y += 1
        y[0] = 0.5
        return y * 2

    x, z = Normal(torch.ones(3, 2), 0.5), Normal(torch.ones(3, 2), 0.5)
    found, wanted = _compiled(run)(x), run(z)
    torch.testing.assert_close(_tensors([found, x]), _tensors([wanted, z]), **CLOSE)


@needs_compiler
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # inductor calls it
@pytest.mark.parametrize(
    ("name", "training"),
    [
        pytest.param(name, training, marks=() if (name, training) == ("layer", True) else pytest.mark.full)
        for name in NETWORKS
        for training in (False, True)
    ],
)
def test_inductor_gives_what_eager_gives(name: str, training: bool) -> None:
    model, x = _network(name, training)
    results = []
    for run in (_compiled(copy.deepcopy(model), "inductor"), model):
        result = run(x)
        leaves = list(model.parameters()) if run is model else list(run._orig_mod.parameters())
        gradients = torch.autograd.grad((result.loc.square() + result.variance).sum(), leaves) if training else ()
        results.append([*_tensors(result), *gradients])
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)
