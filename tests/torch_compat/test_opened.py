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


@pytest.mark.parametrize("function", [torch.relu, lambda x: x], ids=["not of Python", "asks nothing"])
def test_a_function_that_cannot_be_opened_is_warned_of_and_refuses(function: Any) -> None:
    with pytest.warns(UnknownTorchWarning, match="it does not take values") as said:
        copy = opened(function)
    assert len(said) == 1
    with pytest.raises(NotImplementedError, match=r"momentprop cannot run '.*' of this version of torch with values"):
        copy(torch.ones(1))
