import warnings
from typing import Any

import pytest
import torch

from momentprop import Mean, MissingRule, Normal
from momentprop.torch_compat import UnknownTorchWarning, scripts
from tests.torch_compat.gone import loaded_without


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def _scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(_doubled)


def test_scripted_functions_ask_the_type_of_a_value() -> None:
    function = _scripted()
    assert isinstance(function, scripts.SCRIPTED)
    assert float(function(Mean(torch.tensor(3.0))).loc) == float(function(torch.tensor(3.0))) == 6.0
    with pytest.raises(MissingRule, match="Normal values cannot enter the scripted code"):
        function(Normal(torch.tensor(3.0), 1.0))


@pytest.mark.parametrize("path", ["torch.jit.ScriptFunction", "torch._C.ScriptMethod", "torch.jit"])
def test_without_scripts_nothing_is_scripted(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = path if path != "torch.jit" else "torch.jit.ScriptFunction"
    module = loaded_without(missing, "scripts", monkeypatch)
    assert not isinstance(_doubled, module.SCRIPTED)


def test_without_scripted_functions_there_is_nothing_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded_without("torch.jit.ScriptFunction", "scripts", monkeypatch)
    module.install(lambda *_: iter(()))


def test_a_scripted_function_that_cannot_be_changed_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "SCRIPTED", (int, int))  # a type that takes no new methods
    with pytest.warns(UnknownTorchWarning, match=r"`torch\.jit\.ScriptFunction\.__call__`") as said:
        scripts.install(lambda *_: iter(()))
    assert len(said) == 1
