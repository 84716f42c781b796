"""`torch.compile(fullgraph=True)` with values in and out gives what eager gives: for every rule, and in networks."""

import copy
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import EagerAndRecordGraphs

from momentprop import Estimate, Joint, Mean, Normal, Sample, propagate, rule, rules
from momentprop.dispatch import Rule, forget, rule_table
from momentprop.kernels import joint_posterior
from tests.cases import CASES
from tests.examples import NOT_TRACED, REFUSED, Example, example
from tests.networks import ConvNet, ResidualBlock, TransformerBlock, mlp, trained_looking
from tests.stack.compiling import CLOSE, assert_alike, compile_whole, tensors

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
TOGETHER = 20  # rules in one graph, to save time
ELEMENTWISE = {case.op for case in CASES}  # compiled one by one in tests/rules/elementwise/
TRACED = [
    row
    for row in rules.table()
    if row.op not in NOT_TRACED and row.op not in REFUSED and not (row.op in ELEMENTWISE and row.on is Normal)
    if row.on not in (Joint, Estimate)  # the first is below; the second is a result, which no graph makes
]


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# Each rule runs the code of the one named behind it, which every run compiles.
SAME_CODE = {"amin": "amax", "gru": "gru_cell", "lstm": "lstm_cell", "rnn_tanh": "rnn_relu"}


def _is_wide(row: Rule) -> bool:
    """Whether every run compiles the same code by another rule: the one of two dimensions, or that in `SAME_CODE`."""
    same = SAME_CODE.get(row.op, re.sub("[13]d$", "2d", row.op))
    return same != row.op and any(other.op == same and other.on is row.on for other in TRACED)


def _groups() -> list[Any]:
    """Rules by the type of value, a graph's worth at a time.

    Tracing is slow. So two groups of three are compiled in `make test-full` only, and all that are of the same code.
    """
    kinds: dict[tuple[str, bool], list[Rule]] = {}
    for row in TRACED:
        kinds.setdefault((row.on.__name__, _is_wide(row)), []).append(row)
    groups = [
        (f"{name}-{some[0].op}-to-{some[-1].op}", wide, some)
        for (name, wide), rows in kinds.items()
        for some in (rows[first : first + TOGETHER] for first in range(0, len(rows), TOGETHER))
    ]
    return [
        pytest.param(some, id=title, marks=[pytest.mark.full] if wide or number % 3 else [])
        for number, (title, wide, some) in enumerate(groups)
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

    assert_alike(run, compile_whole(run), values)


SLOW = ("softmax", "scaled_dot_product_attention")


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(row.op, marks=[pytest.mark.full] if row.op in SLOW else [])
        for row in rules.table()
        if row.on is Joint
    ],
)
def test_rules_of_joint_values_compile(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values alone: gradients through a derivative of a softmax differ, by up to 4e-3 in an attention.

    Class posteriors average over as many points as compiled code does, which cannot see how many they need.
    """
    monkeypatch.setattr(joint_posterior, "_can_look", lambda *_: False)
    found = example(op, Joint)
    assert found is not None
    value = found.value(Joint)
    torch.testing.assert_close(tensors(compile_whole(found.call)(value)), tensors(found.call(value)), **CLOSE)


def test_no_rule_is_left_out_without_a_reason() -> None:
    ops = {row.op for row in rules.table()}
    assert set(NOT_TRACED) | REFUSED <= ops
    for op in REFUSED:
        row = next(row for row in rules.table() if row.op == op)
        with pytest.raises(ValueError, match="cannot return the indices of random maxima"):
            row.function(Example(abs, (2, 3, 4)).value(Normal), 2)


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
    compiled = compile_whole(twin)
    results = [run(x) for run in (compiled, model)]
    for result, run in zip(results, (twin, model), strict=True):
        assert type(result) is Normal
        (result.loc.square() + result.variance).sum().backward()
        assert all(parameter.grad is not None for parameter in run.parameters())
    ours, eager = (
        [*tensors(result), *(p.grad for p in run.parameters()), *run.buffers()]
        for result, run in zip(results, (twin, model), strict=True)
    )
    torch.testing.assert_close(ours, eager, **CLOSE)


@pytest.mark.parametrize("kind", [Mean, Sample])
def test_the_other_methods_compile(kind: Any) -> None:
    model, x = _network("mlp", training=False)
    found = compile_whole(model)(kind(x.loc))
    assert type(found) is kind
    torch.testing.assert_close(found.loc, model(x.loc), **CLOSE)


def test_propagate_compiles_with_dropout_from_a_plain_input() -> None:
    model, x = _network("mlp", training=False)

    def run(x: Tensor) -> Normal:
        return propagate(model, x, dropout=True, covariance=False)

    found, wanted = compile_whole(run)(x.loc), run(x.loc)
    assert bool((wanted.variance > 0).all())
    torch.testing.assert_close(tensors(found), tensors(wanted), **CLOSE)


@pytest.mark.parametrize("covariance", [None, False])
def test_code_is_compiled_once_whatever_other_operations_find_their_rules(covariance: bool | None) -> None:
    """They fill caches, as the compiler itself does: code that read them would be compiled again and again."""
    model, x = _network("mlp", training=True)
    graphs = EagerAndRecordGraphs()

    def run(x: Tensor) -> Any:
        return model(Normal(x, 0.1)) if covariance is None else propagate(model, x, dropout=True, covariance=covariance)

    compiled = torch.compile(run, fullgraph=True, backend=graphs)
    rule_table._FOUND.clear()
    rule_table._ORDERS.clear()
    for function in (torch.abs, torch.relu, torch.sigmoid):
        compiled(x.loc)
        function(Normal(x.loc.detach(), 0.1))
    assert len(graphs.graphs) == 1


def test_code_is_compiled_again_for_a_new_rule() -> None:
    def run(x: Tensor) -> Tensor:
        return torch.frac(Normal(x, 0.1)).variance  # type: ignore[arg-type, attr-defined]

    x = torch.zeros(2)
    compiled = compile_whole(run)
    try:
        for factor in (2.0, 3.0):
            rule("frac", on=Normal)(lambda input, factor=factor: input.of(input.loc, factor * input.variance))
            assert compiled(x).tolist() == pytest.approx([0.1 * factor] * 2)
    finally:
        forget("frac", on=Normal)


def test_in_place_operations_on_the_argument_are_seen_outside() -> None:
    def run(x: Any) -> Any:
        y = x.relu_()
        y += 1
        y[0] = 0.5
        return y * 2

    x, z = Normal(torch.ones(3, 2), 0.5), Normal(torch.ones(3, 2), 0.5)
    found, wanted = compile_whole(run)(x), run(z)
    torch.testing.assert_close(tensors([found, x]), tensors([wanted, z]), **CLOSE)


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
    for run in (compile_whole(copy.deepcopy(model), "inductor"), model):
        result = run(x)
        leaves = list(model.parameters()) if run is model else list(run._orig_mod.parameters())
        gradients = torch.autograd.grad((result.loc.square() + result.variance).sum(), leaves) if training else ()
        results.append([*tensors(result), *gradients])
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)
