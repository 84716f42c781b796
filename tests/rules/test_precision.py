"""Values holds real floating-point numbers only, and the variances of float16 are computed in float32."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from momentprop import Normal, rules, variance_precision
from momentprop.dispatch import Rule
from momentprop.values import Independent, Statistics, Value
from tests import examples

X = Normal(torch.tensor([1.7, -2.0]), 0.9)


def _half(*shape: int, loc: float = 1.0, variance: float = 0.01) -> Normal:
    return Normal(torch.full(shape, loc), variance).half()  # type: ignore[attr-defined, no-any-return]


FACTORS: dict[str, Callable[[Tensor], Any]] = {
    "mul": lambda factor: X * factor,
    "div": lambda factor: X / factor,
    "addcmul": lambda factor: torch.addcmul(torch.ones(2), X, factor),
    "addcdiv": lambda factor: torch.addcdiv(torch.ones(2), X, factor),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", FACTORS)
def test_square_of_a_short_factor_does_not_overflow(op: str, dtype: torch.dtype) -> None:
    factor = torch.tensor(100, dtype=dtype)
    scale = 100.0 if "mul" in op else 0.01
    torch.testing.assert_close(FACTORS[op](factor).variance, X.variance * scale**2)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y, n: torch.add(y * 0, x, alpha=n),
        lambda x, y, n: torch.sub(y * 0, x, alpha=n),
        lambda x, y, n: x * n,
        lambda x, y, n: torch.addcmul(y * 0, x, torch.ones(1), value=n),
        lambda x, y, n: torch.addcmul(y * 0, x, y, value=n),
        lambda x, y, n: torch.addr(torch.zeros(1, 1), x, torch.ones(1), alpha=n),
        lambda x, y, n: torch.addr(x[None], torch.zeros(1), torch.zeros(1), beta=n),
        lambda x, y, n: torch.lerp(y * 0, x, n),
    ],
)
def test_square_of_a_large_integer_is_a_number(call: Callable[[Normal, Normal, int], Normal]) -> None:
    x, y = Normal(torch.zeros(1), 1.0), Normal(torch.ones(1), 0.0)
    assert call(x, y, 10**11).variance.item() == pytest.approx(1e22)


HALVES: dict[str, Callable[[], tuple[Normal, float]]] = {
    "number": lambda: (_half(1) * 300, 900.0),
    "tensor": lambda: (_half(1) * torch.tensor([300.0]).half(), 900.0),
    "value": lambda: (_half(1) * _half(1, loc=300.0, variance=0.0), 900.0),
    "quotient": lambda: (_half(1) / torch.tensor([1 / 300]).half(), 900.0),
    "certain": lambda: (_half(1, variance=0.0) * torch.tensor([300.0]).half(), 0.0),
    "sum": lambda: (torch.add(_half(1), _half(1), alpha=300), 900.0),
    "twice": lambda: ((lambda x: torch.add(x, x, alpha=299))(_half(1)), 900.0),
    "addcmul": lambda: (torch.addcmul(_half(1), _half(1), torch.tensor([3.0]).half(), value=100), 900.0),
    "lerp": lambda: (torch.lerp(_half(1, variance=0.0), _half(1), 300.0), 900.0),
    "matmul": lambda: (_half(1, 1) @ torch.full((1, 1), 300.0).half(), 900.0),
    "addmm": lambda: (torch.addmm(torch.zeros(1).half(), _half(1, 1), torch.full((1, 1), 300.0).half()), 900.0),
    "linear": lambda: (F.linear(_half(1, 1), torch.full((1, 1), 300.0).half(), torch.ones(1).half()), 900.0),
    "conv": lambda: (F.conv1d(_half(1, 1, 1), torch.full((1, 1, 1), 300.0).half()), 900.0),
    "bilinear": lambda: (F.bilinear(_half(1, 1), torch.ones(1, 1).half(), torch.full((1, 1, 1), 300.0).half()), 900.0),
    "einsum": lambda: (torch.einsum("i,i", _half(1), torch.full((1,), 300.0).half()), 900.0),
    "small weights": lambda: (F.linear(_half(1, 400, variance=100.0), torch.full((1, 400), 1e-4).half()), 4e-4),
    "small kernel": lambda: (F.conv1d(_half(1, 400, 1, variance=100.0), torch.full((1, 400, 1), 1e-4).half()), 4e-4),
    "small factors": lambda: (
        torch.einsum("i,i", _half(400, variance=100.0), torch.full((400,), 1e-4).half()),
        4e-4,
    ),
    "norm": lambda: (
        F.batch_norm(_half(2, 1), torch.zeros(1), torch.ones(1), torch.full((1,), 300.0), eps=0.0)[0],
        900.0,
    ),
}


@pytest.mark.parametrize("name", HALVES)
def test_variance_in_float16_is_right_where_its_squares_leave_the_range(name: str) -> None:
    found, wanted = HALVES[name]()
    assert found.dtype == found.variance.dtype == torch.float16
    assert found.variance.float().flatten()[0].item() == pytest.approx(wanted, rel=0.02)


def test_mixed_types_square_in_the_wider_one() -> None:
    assert (X * torch.tensor(300.0).half()).variance[0].item() == pytest.approx(81000)
    assert (X * _half(2, loc=300.0)).variance[0].item() == pytest.approx(81000, rel=0.01)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_autocast_to_float16_keeps_small_weights_and_large_ones(device: str) -> None:
    torch.manual_seed(0)
    for layer, shape in ((nn.Linear(400, 3), (2, 400)), (nn.Conv1d(400, 3, 1), (2, 400, 5))):
        for scale in (2e-3, 6e3):  # uniform weights of deviations 6e-5 and 180
            model = layer.to(device).requires_grad_(False)
            model.weight.uniform_(-0.05, 0.05).mul_(scale)
            x = Normal(torch.randn(shape, device=device) / scale, 1e-2 / scale)
            wanted = model(x).variance
            with torch.autocast(device, torch.float16):
                found = model(x)
            assert found.dtype == torch.float16
            torch.testing.assert_close(found.variance.float(), wanted, rtol=0.01, atol=0.0)


NOT_IN_FLOAT16 = {"avg_pool3d", "lp_pool3d"}  # torch itself has no kernel for the CPU
CONVERSIONS = {"bfloat16", "double", "float", "half", "to", "type", "type_as"}
ROWS = [
    row
    for row in rules.table()
    if (row.on is Value or issubclass(row.on, Independent))
    and row.op not in {*examples.NOT_TRACED, *examples.REFUSED, *NOT_IN_FLOAT16, *CONVERSIONS}
    and row.on is not Statistics
]


def _values(result: Any) -> list[Independent]:
    parts = pytree.tree_leaves(result, is_leaf=lambda part: isinstance(part, Independent))
    return [part for part in parts if isinstance(part, Independent)]


@pytest.mark.parametrize("constants", [0.01, 50.0])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.op}-{row.on.__name__}")
def test_a_rule_in_float16_is_as_good_as_rounding_its_result(
    row: Rule, constants: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if row.op == "gaussian_nll_loss":
        pytest.skip("its variances are constants that must be positive")
    if row.op == "rnn_relu" and constants > 1:
        pytest.skip("variances of its states between two steps are beyond float16")
    found = examples.example(row.op, row.on)
    assert found is not None, f"no example for {row.op!r}: add one to tests/examples.py"
    x = found.value(row.on)
    x = x.of(x.loc.detach().half(), x.variance.detach().mul(0.01).half())
    constant = examples.constant
    monkeypatch.setattr(examples, "constant", lambda *shape: (constant(*shape) * constants).half())
    in_half = _values(found.call(x))
    monkeypatch.setattr(examples, "constant", lambda *shape: (constant(*shape) * constants).half().float())
    in_float = _values(found.call(x.float()))
    for half, full in zip(in_half, in_float, strict=True):
        assert half.dtype == torch.float16
        fits = (full.variance < 6e4) & (full.loc.abs() < 6e4) & half.loc.isfinite()
        torch.testing.assert_close(half.variance.float()[fits], full.variance[fits], rtol=0.03, atol=3e-7)


REFUSALS: dict[str, Callable[[], Any]] = {
    "mul": lambda: [X * 1j],
    "add": lambda: X + 1j,
    "sub": lambda: torch.tensor([1j]) - X,
    "div": lambda: X / torch.tensor([1j]),
    "einsum": lambda: torch.einsum("i,i->i", X, torch.tensor([1j, 1j])),
    "where": lambda: torch.where(torch.tensor([True, False]), X, 1j),
    "cat": lambda: torch.cat([X, torch.tensor([1j])]),
    "pow": lambda: X**1j,
    "to": lambda: X.to(torch.int64),  # type: ignore[attr-defined]
    "type": lambda: X.type(torch.int64),  # type: ignore[attr-defined]
    "sum": lambda: X.sum(dtype=torch.int64),  # type: ignore[attr-defined]
    "mean": lambda: X.mean(dtype=torch.complex64),  # type: ignore[attr-defined]
    "cumsum": lambda: X.cumsum(0, dtype=torch.int32),  # type: ignore[attr-defined]
    "softmax": lambda: X.softmax(0, dtype=torch.int64),  # type: ignore[attr-defined]
    "log_softmax": lambda: X.log_softmax(0, dtype=torch.int64),  # type: ignore[attr-defined]
    "linalg_vector_norm": lambda: torch.norm(X, dtype=torch.complex64),
}


@pytest.mark.parametrize("op", REFUSALS)
def test_result_that_is_not_real_and_floating_is_refused(op: str) -> None:
    with pytest.raises(TypeError, match=f"'{op}' at top level"):
        REFUSALS[op]()


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.complex64, "torch.LongTensor"]
)
def test_conversion_to_integers_or_complex_numbers_is_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match="holds real floating-point numbers only"):
        X.type(dtype)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="holds real floating-point numbers only"):
        X.type_as(torch.zeros(1).type(dtype))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", "long int short byte char bool cfloat cdouble".split())
def test_methods_that_convert_are_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"no Normal rule for '{name}' at top level"):
        getattr(X, name)()


NETWORK = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Tanh(), nn.Flatten(), nn.Linear(256, 10)
).requires_grad_(False)


def _images() -> Normal:
    generator = torch.Generator().manual_seed(0)
    return Normal(torch.randn(4, 3, 8, 8, generator=generator), 0.1)


def test_variances_in_bfloat16_are_rounded_and_means_are_not() -> None:
    x = _images()
    linear = NETWORK[0]
    exact = linear(x)
    with variance_precision(torch.bfloat16):
        rough = linear(x)
        with variance_precision(None):
            assert torch.equal(linear(x).variance, exact.variance)
    assert torch.equal(rough.loc, exact.loc)
    assert rough.variance.dtype is torch.float32
    assert not torch.equal(rough.variance, exact.variance)
    torch.testing.assert_close(rough.variance, exact.variance, rtol=0.01, atol=0.0)
    assert torch.equal(linear(x).variance, exact.variance)


def test_deviations_of_a_network_move_by_a_few_thousandths_in_bfloat16() -> None:
    exact = NETWORK(_images())
    with variance_precision(torch.bfloat16):
        rough = NETWORK(_images())
    torch.testing.assert_close(rough.stddev, exact.stddev, rtol=4e-3, atol=0.0)
    assert ((rough.loc - exact.loc).abs() < 4e-3 * exact.stddev).all()


def test_derivatives_flow_through_variances_in_bfloat16() -> None:
    layer, x = nn.Linear(8, 4), Normal(torch.ones(2, 8), 0.5)
    layer(x).variance.sum().backward()
    exact, layer.weight.grad = layer.weight.grad, None
    with variance_precision(torch.bfloat16):
        layer(x).variance.sum().backward()
    assert exact is not None
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, exact, rtol=0.02, atol=1e-3)


def test_only_the_thread_that_asks_gets_variances_in_bfloat16() -> None:
    layer, x = nn.Linear(64, 4).requires_grad_(False), Normal(torch.ones(64), 0.5)
    exact, found = layer(x).variance, []
    with variance_precision(torch.bfloat16):
        thread = threading.Thread(target=lambda: found.append(layer(x).variance))
        thread.start()
        thread.join()
    assert torch.equal(found[0], exact)


def test_other_precisions_of_variances_are_refused() -> None:
    with pytest.raises(ValueError, match=r"but is torch\.float16"), variance_precision(torch.float16):
        pass
