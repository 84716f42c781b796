"""Writing at indices, and joining."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from momentprop import Normal
from momentprop.dispatch import MissingRule

ROWS = torch.tensor([2, 0])
PLACES = torch.tensor([[0, 2, 1, 0]])
MASK = torch.tensor([[True, False, True, False]] * 3)

# name -> a linear map of a target of shape (3, 4) and a source of shape (2, 4)
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "index_copy": lambda x, y: x.index_copy(0, ROWS, y),
    "index_add": lambda x, y: x.index_add(0, ROWS, y, alpha=3),
    "index_fill": lambda x, y: x.index_fill(0, ROWS, 7.0),
    "index_put": lambda x, y: x.index_put((ROWS,), y),
    "index_put, adding": lambda x, y: x.index_put((torch.tensor([1, 1]),), y, accumulate=True),
    "scatter": lambda x, y: x.scatter(0, PLACES, y[:1]),
    "scatter of a number": lambda x, y: x.scatter(0, PLACES, 5.0),
    "scatter_add": lambda x, y: torch.scatter_add(x, 0, PLACES, y[:1]),
    "masked_scatter": lambda x, y: x.masked_scatter(MASK, y),
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y, 0, 1),
    "select_scatter": lambda x, y: torch.select_scatter(x, y[0], 0, 1),
    "diagonal_scatter": lambda x, y: torch.diagonal_scatter(x, y[0, :3]),
    "copy_": lambda x, y: x.clone().copy_(y[0]),
    "index_add_": lambda x, y: x.clone().index_add_(0, ROWS, y),
    "hstack": lambda x, y: torch.hstack([x[:2], y]),
    "vstack": lambda x, y: torch.vstack([x, y]),
    "dstack": lambda x, y: torch.dstack([x[:2], y]),
    "row_stack": lambda x, y: torch.row_stack([x, y]),
    "column_stack": lambda x, y: torch.column_stack([x[:2], y]),
    "block_diag": lambda x, y: torch.block_diag(x, y),
    "broadcast_tensors": lambda x, y: torch.broadcast_tensors(x, y[0])[1],
    "diag": lambda x, y: x[0].diag(),
    "diag_embed": lambda x, y: x.diag_embed(),
    "diagflat": lambda x, y: x.diagflat(),
    "take": lambda x, y: x.take(ROWS),
}  # fmt: skip


def _value(*sizes: int, seed: int) -> Normal:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(sizes, generator=generator, dtype=torch.float64)
    return Normal(mean, torch.rand(sizes, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("name", WRITES)
def test_elements_written_or_joined_carry_their_means_and_variances(name: str) -> None:
    write = WRITES[name]
    x, y = _value(3, 4, seed=1), _value(2, 4, seed=2)
    for target, source in ((x, y), (x, y.loc), (x.loc, y)):
        if target is x.loc and name.endswith("_"):
            continue  # a value cannot be written into a plain tensor
        result, plain = write(target, source), write(x.loc, y.loc)
        by_target, by_source = torch.autograd.functional.jacobian(write, (x.loc, y.loc))
        variance = torch.zeros_like(plain)
        for value, jacobian, given in ((x, by_target, target), (y, by_source, source)):
            if isinstance(given, Normal):
                variance = variance + jacobian.flatten(plain.ndim) ** 2 @ value.variance.flatten()
        if not isinstance(result, Normal):  # the random argument took no part
            assert not variance.any()
            continue
        torch.testing.assert_close((result.loc, result.variance), (plain, variance))


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in WRITES if not name.startswith(("copy", "index_add_"))])
def test_writing_compiles_to_the_same_values(name: str) -> None:
    torch.compiler.reset()
    write, x, y = WRITES[name], _value(3, 4, seed=1), _value(2, 4, seed=2)
    compiled, eager = torch.compile(write, fullgraph=True, backend="aot_eager")(x, y), write(x, y)
    torch.testing.assert_close((compiled.loc, compiled.variance), (eager.loc, eager.variance))


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
def test_scattered_elements_can_be_added_but_not_multiplied() -> None:
    x, y = _value(3, 4, seed=1), _value(1, 4, seed=2)
    added, same = x.scatter(0, PLACES, y, reduce="add"), x.scatter_add(0, PLACES, y)
    torch.testing.assert_close((added.loc, added.variance), (same.loc, same.variance))
    with pytest.raises(MissingRule, match="'scatter' with `reduce='multiply'`"):
        _value(3, 4, seed=1).scatter(0, PLACES, 2.0, reduce="multiply")
