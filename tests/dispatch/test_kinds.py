r"""The table keeps its word: what moves elements and what is linear, against matrices.

The truth is the matrix $J$ of an operation, built column by column from torch's own function.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from momentprop import Kind
from momentprop.dispatch import Call
from momentprop.dispatch.kinds import Linear
from momentprop.dispatch.rule_table import operations
from tests.dispatch.probing import caught, example_calls, flat, matrices
from tests.dispatch.settings import SETTINGS
from tests.examples import EXAMPLES

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.filterwarnings("ignore:dropout2d. Received a 3D input"),
]

LINEAR = [row.name for row in operations() if isinstance(row, Linear)]
EXAMPLE_CALLS = [op for op in LINEAR if op in EXAMPLES and op not in ("bilinear", "div")]
CALLS = [*EXAMPLE_CALLS, *SETTINGS]
NOT_CALLED = {"alias": "torch has no public function of this name", "cuda": "needs a GPU"}
SHORT = {"bfloat16": 1e-2, "half": 1e-3, "float": 1e-6, "to": 1e-6, "type": 1e-6}


@functools.cache
def _calls(name: str) -> list[tuple[Kind, Call, list[Tensor]]]:
    """The linear calls under a name, with their matrices."""
    if name in SETTINGS:
        op, function, shape = SETTINGS[name]
        calls = [(kind, call) for kind, call in caught(function, *shape) if call.op == op]
    else:
        calls = example_calls(name)
    assert calls, f"{name!r} makes no linear call"
    return [(kind, call, matrices(call)) for kind, call in calls if kind is not Kind.BILINEAR]


def _random(call: Call) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(value.shape, generator=generator, dtype=value.dtype) for value in call.values]


def _product(matrices: list[Tensor], tensors: list[Tensor]) -> Tensor:
    return torch.stack([m @ x.flatten() for m, x in zip(matrices, tensors, strict=True)]).sum(0)


def _assert_close(found: Tensor, expected: Tensor, name: str) -> None:
    tolerance = SHORT.get(name, 1e-12)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=10 * tolerance)


def test_every_linear_operation_is_called_here() -> None:
    called = {call.op for name in CALLS for _, call, _ in _calls(name)}
    both_random = {"vdot"}  # see the bilinear ones below
    assert set(LINEAR) - set(NOT_CALLED) - both_random == called


@pytest.mark.parametrize("name", CALLS)
def test_it_is_linear(name: str) -> None:
    for _, call, matrix in _calls(name):
        more, locs = _random(call), [value.loc for value in call.values]
        step = [a + b for a, b in zip(locs, more, strict=True)]
        tolerance = 100 if name in SHORT else 1  # a difference of rounded numbers
        torch.testing.assert_close(
            flat(call.on(*step)) - flat(call.on(*locs)),
            _product(matrix, more),
            rtol=0.0,
            atol=tolerance * SHORT.get(name, 1e-12),
        )
        _assert_close(flat(call.operation.homogeneous(call).on(*locs)), _product(matrix, locs), name)


@pytest.mark.parametrize("name", CALLS)
def test_squares_are_those_of_the_weights(name: str) -> None:
    for _, call, matrix in _calls(name):
        variances = _random(call)
        found = call.operation.squares(call, *variances)
        _assert_close(flat(found), _product([m * m for m in matrix], variances), name)


@pytest.mark.parametrize("name", CALLS)
def test_the_transpose_is_one_of_forward_operations(name: str) -> None:
    for _, call, matrix in _calls(name):
        gradient = _like(call.on(*(value.loc for value in call.values)))
        found = call.operation.transpose(call, gradient)
        assert [part.shape for part in found] == [value.shape for value in call.values]
        for part, m in zip(found, matrix, strict=True):
            _assert_close(part.flatten(), m.T @ flat(gradient), name)

        graph = make_fx(_transposed(call))(gradient)
        assert not [node.target for node in graph.graph.nodes if "backward" in str(node.target)]


def _transposed(call: Call) -> Callable[[Any], Any]:
    def transposed(gradient: Any) -> Any:
        return call.operation.transpose(call, gradient)

    return transposed


def _like(result: Any) -> Any:
    generator = torch.Generator().manual_seed(2)
    if isinstance(result, Tensor):
        if not result.is_floating_point():
            return result
        return torch.rand(result.shape, generator=generator, dtype=torch.float64).to(result.dtype)
    return type(result)(_like(part) for part in result)


@pytest.mark.parametrize("name", CALLS)
def test_a_move_takes_one_element_or_none(name: str) -> None:
    for kind, call, matrix in _calls(name):
        if kind is Kind.MOVES:
            joined = torch.cat(matrix, 1)
            assert set(joined.unique().tolist()) <= {0.0, 1.0}
            assert int(joined.sum(1).max()) <= 1
            if _copies(call, matrix):
                assert call.operation.copying(call)


def _copies(call: Call, matrix: list[Tensor]) -> bool:
    """Whether a column has two ones; the columns of a value that is given twice are added."""
    columns: dict[int, Tensor] = {}
    for value, m in zip(call.values, matrix, strict=True):
        columns[id(value)] = columns.get(id(value), torch.zeros(())) + m.sum(0)
    return any(int(total.max()) > 1 for total in columns.values())


@pytest.mark.parametrize(
    "name",
    ["permute", "view", "transpose", "flip", "roll", "reshape", "getitem, indices", "getitem, a mask", "split",
     "setitem", "where", "interpolate {'size': (3, 4)}", "masked_fill", "gather", "unbind", "pad, cropped"],
)  # fmt: skip
def test_a_permutation_or_selection_copies_nothing(name: str) -> None:
    for kind, call, _ in _calls(name):
        assert kind is Kind.MOVES
        assert not call.operation.copying(call)


@pytest.mark.parametrize(
    "name",
    ["expand", "repeat", "repeat_interleave", "tile", "pad, replicate", "pad, reflect in 2d", "pad, circular",
     "getitem, repeated", "getitem, a list", "getitem, counted from both ends", "gather, repeated",
     "index_select, repeated", "take, repeated", "cat with itself", "stack with itself", "where, one for several",
     "masked_fill, one for several", "masked_fill, a random filling", "setitem, one for several",
     "copy, one for several", "index_put, a value", "embedding", "unfold, overlapping", "as_strided, overlapping",
     "interpolate {'scale_factor': 2}", "grid_sample of a volume, nearest"],
)  # fmt: skip
def test_repeated_elements_are_copies(name: str) -> None:
    last = [call for kind, call, _ in _calls(name) if kind is Kind.MOVES][-1]
    assert last.operation.copying(last)
