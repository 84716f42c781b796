import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from momentprop.torch_compat.dispatching import DispatchMode, is_recorded
from tests.torch_compat.gone import loaded_without


class _Sees(DispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_a_trace_records_and_other_modes_do_not() -> None:
    seen = []

    def noting(x: Tensor) -> Tensor:
        seen.append(is_recorded())
        return x + 1

    make_fx(noting)(torch.ones(2))
    with _Sees():
        noting(torch.ones(2))
    assert seen == [True, False]


@pytest.mark.parametrize("name", ["_TorchDispatchModeKey.PROXY", "_get_dispatch_mode"])
def test_without_the_modes_nothing_is_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded_without(f"torch._C.{name}", "dispatching", monkeypatch)
    assert not module.is_recorded()
