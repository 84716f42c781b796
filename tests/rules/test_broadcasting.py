"""Mean and variance of every result have one shape and one type, also where arguments broadcast."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from momentprop import Fitted, Logistic, Normal, functional, rules
from momentprop.dispatch import Rule
from momentprop.values import Independent, Value
from tests import examples

X = Normal(torch.tensor([[0.5], [-1.0]]), 0.3)
ROW = torch.tensor([0.1, 1.0, 2.0])
Y = Normal(ROW, 0.2)
DEEP = torch.full((4, 1, 1), 0.3)
SCALAR = Normal(torch.tensor([0.5]), 0.1)
NORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "batch": lambda x, weight, bias: F.batch_norm(x, torch.zeros(3), torch.ones(3), weight, bias),
    "batch in training": lambda x, weight, bias: F.batch_norm(x, None, None, weight, bias, training=True),
    "layer": lambda x, weight, bias: F.layer_norm(x.mT, (3,), weight, bias).mT,
    "rms": lambda x, weight, bias: (F.rms_norm(x.mT, (3,), weight) if bias is None else x.mT + bias).mT,
    "group": lambda x, weight, bias: F.group_norm(x, 1, weight, bias),
    "instance": lambda x, weight, bias: F.instance_norm(x, weight=weight, bias=bias),
    "instance, fixed": lambda x, weight, bias: F.instance_norm(
        x, torch.zeros(3), torch.ones(3), weight, bias, use_input_stats=False
    ),
}  # fmt: skip

CALLS: dict[str, Callable[[], Any]] = {
    "add": lambda: [X + ROW, X + Y, ROW - X, torch.add(ROW, X, alpha=2)],
    "mul": lambda: [X * ROW, X * Y, ROW * X],
    "div": lambda: [X / ROW, ROW / Normal(torch.full((2, 1), 3.0), 0.01)],
    "addcmul": lambda: [torch.addcmul(ROW, X, DEEP), torch.addcmul(X, ROW, DEEP), torch.addcmul(DEEP, X, Y)],
    "addcdiv": lambda: torch.addcdiv(X, ROW, DEEP),
    "lerp": lambda: [torch.lerp(X, ROW, 0.3), torch.lerp(X, Y, DEEP), torch.lerp(ROW, X.loc, Normal(DEEP, 0.1))],
    "heaviside": lambda: [torch.heaviside(kind.of(X.loc, X.variance), ROW) for kind in (Normal, Logistic, Fitted)],
    "maximum": lambda: [torch.maximum(X, ROW), torch.minimum(X, Y), torch.atan2(X, ROW), torch.atan2(ROW, X)],
    "clamp": lambda: [torch.clamp(X, min=-ROW, max=ROW), torch.clamp(X, min=ROW)],
    "pow": lambda: torch.pow(ROW, X),
    "where": lambda: [torch.where(DEEP > 0, X, ROW), torch.where(DEEP > 0, X, 0.5)],
    "masked_fill": lambda: [X.masked_fill(ROW > 0.5, 0.5), torch.zeros(2, 1).masked_fill(ROW > 0.5, SCALAR[0])],  # type: ignore[attr-defined, index, arg-type]
    "prelu": lambda: [F.prelu(X.expand(2, 3), Y), F.prelu(torch.ones(2, 3), Y), F.prelu(X.expand(2, 3), ROW)],  # type: ignore[attr-defined]
    "matmul": lambda: [X @ torch.ones(4, 1, 3), torch.ones(4, 1, 2) @ X],
    "addmm": lambda: [
        torch.addmm(SCALAR, torch.ones(2, 5), torch.ones(5, 3)),
        torch.addmv(SCALAR, torch.ones(2, 5), torch.ones(5)),
        torch.addr(SCALAR, torch.ones(2), Y),
        torch.addbmm(SCALAR, torch.ones(4, 2, 5), torch.ones(4, 5, 3)),
        torch.baddbmm(SCALAR, torch.ones(4, 2, 5), torch.ones(4, 5, 3)),
    ],
    "bias": lambda: [
        F.linear(torch.ones(4, 5), torch.ones(3, 5), Y),
        F.bilinear(torch.ones(4, 2), torch.ones(4, 2), torch.ones(3, 2, 2), Y),
        F.conv1d(torch.ones(2, 1, 4), torch.ones(3, 1, 2), Y),
    ],
    "tensordot": lambda: [
        torch.tensordot(X, torch.ones(4, 3), ([1], [0])),
        torch.tensordot(torch.ones(3, 4), X, ([1], [1])),
    ],
    "einsum": lambda: torch.einsum("...i,...i->...i", X, ROW),
    "max_with_covariance": lambda: functional.max_with_covariance(X, Y, 0.01),
    **{
        f"{name} norm": lambda norm=norm: [
            norm(x, weight, bias)
            for x in (Normal(torch.randn(4, 3, 5), 0.1), torch.randn(4, 3, 5))
            for weight, bias in ((Y, None), (None, Y))
        ]
        for name, norm in NORMS.items()
    },
}  # fmt: skip


def _values(result: Any) -> list[Independent]:
    parts = pytree.tree_leaves(result, is_leaf=lambda part: isinstance(part, Independent))
    return [part for part in parts if isinstance(part, Independent)]


@pytest.mark.parametrize("name", CALLS)
def test_arguments_broadcast_in_mean_and_variance_alike(name: str) -> None:
    found = _values(CALLS[name]())
    assert found
    for value in found:
        assert value.loc.shape == value.variance.shape
        assert value.loc.dtype == value.variance.dtype
        assert bool((value.variance >= 0).all())


ROWS = [
    row
    for row in rules.table()
    if (row.on is Value or issubclass(row.on, Independent)) and row.op not in {*examples.NOT_TRACED, *examples.REFUSED}
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.op}-{row.on.__name__}")
def test_mean_and_variance_have_one_shape_and_type(row: Rule) -> None:
    found = examples.example(row.op, row.on)
    assert found is not None, f"no example for {row.op!r}: add one to tests/examples.py"
    x = found.value(row.on)
    for value in _values(found.call(x.of(*(getattr(x, name).detach().float() for name in x.components)))):
        assert value.loc.shape == value.variance.shape
        assert value.loc.dtype == value.variance.dtype


@pytest.mark.parametrize("name", NORMS)
def test_random_weight_and_bias_of_a_norm_are_independent_of_its_input(name: str) -> None:
    torch.manual_seed(0)
    norm = NORMS[name]
    x = Normal(torch.randn(4, 3, 5), 0.1)
    weight = Normal(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([0.1, 0.2, 0.3]))
    plain: Any = norm(x, None, None)
    scaled, shifted = norm(x, weight, None), norm(x, None, weight)
    per_channel: Any = weight.reshape(3, 1)  # type: ignore[attr-defined]
    torch.testing.assert_close(scaled.loc, plain.loc * per_channel.loc)
    torch.testing.assert_close(scaled.variance, (plain * per_channel).variance)
    about = plain if name != "rms" else x  # it has no bias
    torch.testing.assert_close(shifted.loc, about.loc + per_channel.loc)
    torch.testing.assert_close(shifted.variance, about.variance + per_channel.variance.expand(4, 3, 5))


def test_batch_norm_with_random_weight_updates_its_statistics_once() -> None:
    running = [(torch.zeros(3), torch.ones(3)) for _ in range(2)]
    x, weight = Normal(torch.randn(4, 3), 0.1), Normal(torch.ones(3), 0.2)
    F.batch_norm(x, *running[0], training=True)
    F.batch_norm(x, *running[1], weight, training=True)
    for first, second in zip(*running, strict=True):
        torch.testing.assert_close(first, second)


def test_batch_norm_in_training_refuses_one_value_per_channel_as_torch_does() -> None:
    layer = torch.nn.BatchNorm1d(3)
    for x in (torch.ones(1, 3), Normal(torch.ones(1, 3), 1.0)):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
            layer(x)


def test_empty_batch_in_training_leaves_statistics_and_gradients_alone() -> None:
    layer: Any = torch.nn.BatchNorm1d(3)
    y = layer(Normal(torch.ones(0, 3, 2), 1.0))
    assert y.shape == y.variance.shape == (0, 3, 2)
    (y.loc.sum() + y.variance.sum()).backward()
    assert layer.running_mean.tolist() == [0.0] * 3
    assert layer.running_var.tolist() == [1.0] * 3
    assert layer.weight.grad.tolist() == [0.0] * 3


def test_tensordot_sums_first_what_meets_one_element() -> None:
    x, y = Normal(torch.randn(2, 1), 0.3), Normal(torch.randn(4, 3), 0.2)
    found: Any = torch.tensordot(x, y, 1)
    wanted: Any = x @ y.sum(0, keepdim=True)  # type: ignore[attr-defined, operator]
    torch.testing.assert_close(found.loc, torch.tensordot(x.loc, y.loc, 1))
    torch.testing.assert_close(found.variance, wanted.variance)
    with pytest.raises(RuntimeError, match="contracted dimensions need to match"):
        torch.tensordot(x.expand(2, 3), y, 1)  # type: ignore[attr-defined]


def test_heaviside_that_broadcasts_has_gradients_of_the_whole() -> None:
    x = Normal(torch.tensor([[0.3], [-0.2]]).requires_grad_(), torch.tensor([[0.5], [0.0]]).requires_grad_())
    y = torch.heaviside(x, torch.ones(3))
    alone = torch.heaviside(x, torch.ones(1))
    found = torch.autograd.grad(y.loc.sum() + 2 * y.variance.sum(), [x.loc, x.variance])
    wanted = torch.autograd.grad(3 * alone.loc.sum() + 6 * alone.variance.sum(), [x.loc, x.variance])
    torch.testing.assert_close(found, wanted)
    with pytest.raises(NotImplementedError, match="'heaviside' with random `values`"):
        torch.heaviside(ROW, Y)
