"""As noise vanishes, every operation has the covariance of the delta method: its plain Jacobian."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Joint, Kind, Normal, propagate, rules
from momentprop.dispatch.rule_table import operation_named
from tests.examples import REFUSED, example

# examples with a second value, which is random beside the input, and what torch cannot differentiate
_OTHER = frozenset(
    "add addcdiv addcmul atan2 bilinear cat column_stack cosine_embedding_loss cosine_similarity div dstack hstack "
    "lerp matmul max_with_covariance maximum min minimum mul pairwise_distance row_stack scaled_dot_product_attention "
    "stack sub triplet_margin_loss triplet_margin_with_distance_loss vdot vstack where "
    "_grouped_mm copy cuda detach heaviside margin_ranking_loss requires_grad_ resize resize_as".split()
)
_MIXED = (Kind.MIXING, Kind.BILINEAR, Kind.COMPOSITE, Kind.LOSS)
_VARIANCE = 1e-12


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _operations() -> list[Any]:
    ops = sorted({row.op for row in rules.table() if issubclass(Normal, row.on)})
    kinds = {op: operation_named(op).kind for op in ops}
    known = [
        op
        for op in ops
        if kinds[op] not in (Kind.NOISE, Kind.PLAIN) and op not in _OTHER | REFUSED and example(op, Normal)
    ]
    return [pytest.param(op, marks=[] if kinds[op] in _MIXED else [pytest.mark.full]) for op in known]


def _assert_like_the_delta_method(function: Callable[..., Any], x: Tensor, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of outputs with many units, and of choices by the means
        found, wanted = (
            propagate(function, x, input_variance=_VARIANCE, **options, **method)
            for method in ({"covariance": None}, {"method": "linear"})
        )
    pairs = zip(*((y if isinstance(y, tuple | list) else [y]) for y in (found, wanted)), strict=True)
    for ours, plain in pairs:
        if isinstance(ours, Joint):
            scale = float(plain.covariance.detach().abs().max())
            torch.testing.assert_close(ours.covariance, plain.covariance, rtol=0.0, atol=1e-4 * scale + 1e-30)


@pytest.mark.parametrize("op", _operations())
def test_an_operation(op: str) -> None:
    found = example(op, Normal)
    assert found is not None
    x = found.value(Normal).loc.detach()
    _assert_like_the_delta_method(lambda x: _some(found.call(x)), x, batch_dim=None)


def _some(y: Any) -> Any:
    """Return few units of each result."""
    if isinstance(y, tuple | list):
        return tuple(_some(each) for each in y)
    return y.flatten()[:60] if hasattr(y, "flatten") and y.numel() > 60 else y


_MATRIX = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _attended(x: Any) -> Any:
    query, key = ((x @ matrix)[:, None, None].expand(-1, 1, 2, 4) for matrix in (_MATRIX, _MATRIX.T))
    return F.scaled_dot_product_attention(query, key, query.tanh()).flatten(1)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {  # of values that were computed from each other
    "lerp": lambda x: torch.lerp(x @ _MATRIX, x.tanh(), torch.sigmoid(x @ _MATRIX.T)),
    "addcmul": lambda x: torch.addcmul(x, x @ _MATRIX, x.tanh()),
    "attention": _attended,
    "cosine_similarity": lambda x: F.cosine_similarity(x @ _MATRIX, x),
    "maximum": lambda x: torch.maximum(x, x @ _MATRIX),
    "matmul": lambda x: (x[:, None] @ (x @ _MATRIX)[:, :, None])[:, 0],
    "pairwise_distance": lambda x: F.pairwise_distance(x, x @ _MATRIX),
    "div": lambda x: (x @ _MATRIX) / (3 + x.tanh()),
    "converted": lambda x: ((x @ _MATRIX).float().tanh() @ _MATRIX.float()).double().exp(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_that_depend_on_each_other(name: str) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _assert_like_the_delta_method(FUNCTIONS[name], x)


@pytest.mark.parametrize("network", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_networks(network: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    model = network(4, 5, batch_first=True)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _assert_like_the_delta_method(lambda x: model(x[:, None].expand(3, 3, 4))[0][:, -1], x)
