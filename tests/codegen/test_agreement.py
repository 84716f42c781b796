"""A build that gives wrong numbers serves nobody."""

import pytest
import torch

from momentprop.codegen import c_library, programs
from momentprop.codegen.agreement import check_of
from momentprop.codegen.formula import record
from momentprop.codegen.processes import CompilerError
from tests.codegen.conftest import needs_compiler


def products(x, y):
    return [x * y, x.sum(-1, keepdim=True)]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, y: [x * y * 1.01, x.sum(-1, keepdim=True)],
        lambda x, y: [x * y, x.sum(-1, keepdim=True) * torch.nan],
        lambda x, y: [(x * y).flip(0), x.sum(-1, keepdim=True)],
    ],
)
@torch.inference_mode()
def test_wrong_numbers_are_noticed(wrong):
    check = check_of([products], [record(products, [True, False], torch.float32, 7)], torch.device("cpu"))
    check([products])
    with pytest.raises(CompilerError, match="differs from its formula"):
        check([wrong])


@needs_compiler
@pytest.mark.usefixtures("building")
def test_a_wrong_build_is_thrown_away(folder, monkeypatch):
    programs.set_mode("wait")
    source_of = c_library.source_of
    monkeypatch.setattr(c_library, "source_of", lambda formulas: source_of(formulas).replace("a0 * a1", "a0 + a1"))
    wanted = programs.Functions(lambda x, y: [x * y], lambda x, y, g: [g * y, g * x], ([True] * 2, [True] * 3))
    assert programs.program_for("product", [torch.ones(3)] * 2, lambda: wanted) is None
    assert "differs from its formula" in programs.failures().popitem()[1]
    assert not list(folder.iterdir())
