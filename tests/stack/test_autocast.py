"""Under autocast to bfloat16 variances stay right to 1 %, eager and compiled, and so does every rule in bfloat16."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from momentprop import Normal, rules
from momentprop.dispatch import Rule
from momentprop.values import Independent, Value
from tests import examples
from tests.networks import ConvNet, TransformerBlock, conv9, mlp, trained_looking

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (16, 6)),
    "conv9": (conv9, (4, 3, 16, 16)),
    "convolutions": (ConvNet, (4, 3, 8, 8)),
    "transformer": (TransformerBlock, (3, 5, 8)),
}


def _network(name: str, device: str, training: bool = False) -> tuple[nn.Module, Normal]:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    model = trained_looking(build()).train(training).to(device)
    return model, Normal(torch.randn(shape).to(device), 0.1)


def _in_bfloat16(run: Callable[[Normal], Normal], x: Normal) -> Normal:
    with torch.autocast(x.device.type, torch.bfloat16):
        return run(x)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_variances_under_autocast_are_right_to_one_percent(name: str, device: str, training: bool) -> None:
    model, x = _network(name, device, training)
    wanted = copy.deepcopy(model)(x)
    found = _in_bfloat16(model, x)
    torch.testing.assert_close(found.variance.float(), wanted.variance, rtol=0.01, atol=0.0)
    plain = _in_bfloat16(model.eval(), x.loc)
    assert found.loc.dtype == found.variance.dtype == plain.dtype


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.full) for name in NETWORKS if name != "mlp")]
)
def test_compiled_and_eager_agree_under_autocast(name: str, device: str) -> None:
    model, x = _network(name, device)
    torch.compiler.reset()
    found = _in_bfloat16(torch.compile(model, fullgraph=True, backend="aot_eager"), x)
    torch.testing.assert_close(found.variance, _in_bfloat16(model, x).variance, rtol=0.01, atol=0.0)


def test_gradients_under_autocast_reach_all_parameters() -> None:
    model, x = _network("convolutions", "cpu", training=True)
    twin = copy.deepcopy(model)
    for run in (lambda: _in_bfloat16(model, x), lambda: twin(x)):
        y = run()
        (y.loc.float().square() + y.variance.float()).sum().backward()
    largest = max(parameter.grad.norm() for parameter in twin.parameters())
    for found, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        assert (found.grad - wanted.grad).norm() < 0.02 * largest


# On the examples of tests/examples.py, by how much a variance may be off. The recurrences round their state at every
# step, and `grid_sample` its weights.
WIDER = {"grid_sample": 0.03, "gru": 0.03, "lstm": 0.03, "lstm_cell": 0.03, "rnn_relu": 0.06}
NOT_IN_BFLOAT16 = {"avg_pool3d", "lp_pool3d"}  # torch itself has no kernel for the CPU
CONVERSIONS = {"bfloat16", "double", "float", "half", "to", "type", "type_as"}
ROWS = [
    row
    for row in rules.table()
    if (row.on is Value or issubclass(row.on, Independent))
    and row.op not in {*examples.NOT_TRACED, *examples.REFUSED, *NOT_IN_BFLOAT16, *CONVERSIONS}
]


def _values(result: Any) -> list[Independent]:
    parts = pytree.tree_leaves(result, is_leaf=lambda part: isinstance(part, Independent))
    return [part for part in parts if isinstance(part, Independent)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.op}-{row.on.__name__}")
def test_a_rule_in_bfloat16_is_as_good_as_rounding_its_input(row: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examples.example(row.op, row.on)
    assert found is not None, f"no example for {row.op!r}: add one to tests/examples.py"
    x = found.value(row.on)
    x = x.of(x.loc.detach().bfloat16(), x.variance.detach().bfloat16())
    constant = examples.constant
    monkeypatch.setattr(examples, "constant", lambda *shape: constant(*shape).bfloat16())
    in_half = _values(found.call(x))
    monkeypatch.setattr(examples, "constant", lambda *shape: constant(*shape).bfloat16().float())
    in_float = _values(found.call(x.float()))
    for half, full in zip(in_half, in_float, strict=True):
        assert half.dtype == torch.bfloat16
        tolerance = WIDER.get(row.op, 0.015)
        torch.testing.assert_close(half.variance.float(), full.variance, rtol=tolerance, atol=1e-6)
