from typing import Any

import pytest
import torch
import torch.nn.functional as F

from momentprop.torch_compat import UnknownTorchWarning
from momentprop.torch_compat.opened import opened


class _Heard:
    """Notes the name of every operation that meets it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args[0].names.append(function.__name__)
        return args[0]

    def tanh(self) -> "_Heard":
        return torch.tanh(self)

    def __sub__(self, other: Any) -> "_Heard":
        return torch.sub(self, other)


def test_the_operations_inside_meet_the_value() -> None:
    whole, inside = _Heard(), _Heard()
    F.tanhshrink(whole)
    assert whole.names == ["tanhshrink"]
    opened(F.tanhshrink)(inside)
    assert inside.names == ["tanh", "sub"]


def test_a_copy_computes_what_the_function_does() -> None:
    x = torch.linspace(-1, 1, 5)
    torch.testing.assert_close(opened(F.tanhshrink)(x), F.tanhshrink(x))
    assert opened(F.tanhshrink).__doc__ == F.tanhshrink.__doc__


def _asks_in_another_way(x: Any) -> Any:
    if hasattr(x, "__torch_function__"):
        return x.__torch_function__(_asks_in_another_way, (), (x,))
    return x


@pytest.mark.parametrize("function", [torch.relu, _asks_in_another_way], ids=["not of Python", "still hands over"])
def test_a_function_that_cannot_be_opened_is_warned_of_and_refuses(function: Any) -> None:
    with pytest.warns(UnknownTorchWarning, match="it raises an error for values") as said:
        copy = opened(function)
    assert len(said) == 1
    with pytest.raises(NotImplementedError, match=r"momentprop cannot run '.*' of this version of torch with values"):
        copy(torch.ones(1))


def test_a_renamed_question_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in vars(F) if name.startswith("has_torch_function")]:
        monkeypatch.setattr(F, f"renamed_{name}", getattr(F, name), raising=False)
        monkeypatch.delattr(F, name)
    renamed = {name: f"renamed_{name}" for name in F.multi_head_attention_forward.__code__.co_names if "has_" in name}
    code = F.multi_head_attention_forward.__code__
    names = tuple(renamed.get(name, name) for name in code.co_names)
    monkeypatch.setattr(F.multi_head_attention_forward, "__code__", code.replace(co_names=names))
    with pytest.warns(UnknownTorchWarning, match=r"`torch\.nn\.functional\.multi_head_attention_forward`"):
        opened(F.multi_head_attention_forward)
