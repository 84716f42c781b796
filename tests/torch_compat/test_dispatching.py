import pytest

from momentprop.torch_compat.dispatching import DispatchMode, is_watched
from tests.torch_compat.gone import loaded_without


class _Sees(DispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_a_running_mode_watches() -> None:
    assert not is_watched()
    with _Sees():
        assert is_watched()
    assert not is_watched()


def test_without_the_stack_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded_without("torch._C._len_torch_dispatch_stack", "dispatching", monkeypatch)
    with module.DispatchMode():
        assert not module.is_watched()
