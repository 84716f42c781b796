"""Rows of any length: their arrays lie on the stack, or in memory of their own for each thread."""

import pytest
import torch

from momentprop.codegen import c_library, printed_rows
from momentprop.codegen.formula import Unprintable
from momentprop.codegen.printed_rows import room_of_row
from tests.codegen.conftest import needs_compiler, recorded


def in_three_passes(x):
    """Keep two results for later passes, one of them a condition."""
    shifted = (x - x.amax(-1, keepdim=True)).exp()
    share = shifted / shifted.sum(-1, keepdim=True)
    large = share > 1 / x.shape[-1]
    return [torch.where(large, share, 0.0) / (share * share).sum(-1, keepdim=True), shifted]


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("row", [5, 1003])
def test_arrays_of_rows_may_lie_in_memory_of_each_thread(row, dtype, folder, monkeypatch):
    monkeypatch.setattr(printed_rows, "_MOST_ON_THE_STACK", 0)
    monkeypatch.setattr(c_library, "_threads", lambda elements: 3)
    formula = recorded(in_three_passes, dtype=dtype, row=row)
    assert room_of_row(formula) >= 2 * row * dtype.itemsize
    source = c_library.source_of([formula])
    assert "scratch + " in source
    c_library.build(source, c_library.place_of(source))
    (call,) = c_library.load(c_library.place_of(source), [formula])
    x = torch.randn(64, row, generator=torch.manual_seed(0), dtype=dtype)
    torch.testing.assert_close(call(x), in_three_passes(x))


def test_short_rows_need_no_memory_but_the_stack():
    assert room_of_row(recorded(in_three_passes, row=64)) == 0


def test_rows_beyond_all_bounds_are_left_to_the_formula(monkeypatch):
    monkeypatch.setattr(printed_rows, "_MOST", 1000)
    with pytest.raises(Unprintable, match="the rows are too long"):
        room_of_row(recorded(in_three_passes, row=500))
