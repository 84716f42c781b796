import pytest
import torch
from torch.overrides import TorchFunctionMode

from momentprop.torch_compat import modes
from tests.torch_compat.gone import loaded_without


class _Counting(TorchFunctionMode):
    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


class _Other(TorchFunctionMode):
    pass


def test_the_innermost_mode_of_a_type_is_found() -> None:
    assert modes.innermost(_Counting) is None
    with _Counting(), _Counting() as inner, _Other():
        assert modes.innermost(_Counting) is inner
    assert modes.innermost(_Counting) is None


def test_no_mode_sees_what_happens_in_a_bare_context() -> None:
    with _Counting() as mode:
        with modes.bare():
            torch.relu(torch.ones(1))
        assert mode.count == 0
        torch.relu(torch.ones(1))
        assert mode.count > 0


@pytest.mark.parametrize("name", ["_len_torch_function_stack", "_get_function_stack_at"])
def test_without_the_stack_no_mode_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded_without(f"torch._C.{name}", "modes", monkeypatch)
    with _Counting():
        assert module.innermost(_Counting) is None


def test_without_a_way_past_modes_they_see_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded_without("torch._C.DisableTorchFunction", "modes", monkeypatch)
    with _Counting() as mode, module.bare():
        torch.relu(torch.ones(1))
    assert mode.count > 0


def test_modes_are_restored_whatever_was_entered_or_left() -> None:
    with _Counting(), _Other():
        before = modes.entered()
        torch._C._pop_torch_function_stack()
        torch._C._pop_torch_function_stack()
        torch._C._push_on_torch_function_stack(_Other())
        modes.restore(before)
        assert all(a is b for a, b in zip(modes.entered(), before, strict=True))
    assert modes.entered() == []
