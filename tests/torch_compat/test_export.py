import pytest
import torch
from torch import Tensor, nn

from momentprop.torch_compat import export
from tests.torch_compat.gone import fresh


class _Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if export.exporting() else x - 1


def test_only_an_export_is_an_export() -> None:
    model, x = _Asks(), torch.zeros(2)
    assert float(model(x)[0]) == -1
    assert float(torch.compile(model, backend="eager")(x)[0]) == -1
    assert float(torch.export.export(model, (x,)).module()(x)[0]) == 1


def test_without_the_flag_the_public_function_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.compiler, "_is_exporting_flag")
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: "public")
    module, said = fresh("export")
    assert module.exporting() == "public"
    assert said == []
