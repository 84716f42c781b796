from typing import Any

import pytest
import torch
from torch import nn

from momentprop.torch_compat import modules
from tests.torch_compat.gone import fresh, loaded_without, without

_BATCH_NORMS = [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2)]
_INSTANCE_NORMS = [nn.InstanceNorm1d(2), nn.InstanceNorm2d(2), nn.InstanceNorm3d(2)]
_DROPOUTS = [nn.Dropout(), nn.Dropout1d(), nn.Dropout2d(), nn.Dropout3d(), nn.AlphaDropout(), nn.FeatureAlphaDropout()]


def _told(room: Any) -> dict[str, list[nn.Module]]:
    every = [*_BATCH_NORMS, *_INSTANCE_NORMS, *_DROPOUTS, nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.Linear(1, 1)]
    return {
        name: [module for module in every if isinstance(module, getattr(room, name))]
        for name in ("BatchNorm", "RunningNorm", "Dropout")
    }


_EXPECTED = {"BatchNorm": _BATCH_NORMS, "RunningNorm": _BATCH_NORMS + _INSTANCE_NORMS, "Dropout": _DROPOUTS}


def test_layers_are_told_by_their_base() -> None:
    assert _told(modules) == _EXPECTED


@pytest.mark.parametrize("path", ["batchnorm._NormBase", "batchnorm._BatchNorm", "dropout._DropoutNd"])
def test_without_a_base_torchs_own_layers_are_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _told(loaded_without(f"torch.nn.modules.{path}", "modules", monkeypatch)) == _EXPECTED


def test_hooks_are_found_and_removed() -> None:
    layer, seen = nn.Identity(), []
    layer.register_forward_pre_hook(lambda *_: seen.append("before"))
    layer.register_forward_hook(lambda *_: seen.append("after"))
    layer(torch.ones(1))
    assert seen == ["before", "after"]
    for hooks in (modules.hooks_before(layer), modules.hooks_after(layer)):
        assert len(hooks) == 1
        hooks.clear()
    layer(torch.ones(1))
    assert seen == ["before", "after"]


class _Bare:
    """A module without hooks, as another torch might make it."""


def test_without_hooks_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    make = nn.Module.__init__

    def without_hooks(self: nn.Module) -> None:
        make(self)
        del self.__dict__["_forward_hooks"]

    monkeypatch.setattr(nn.Module, "__init__", without_hooks)
    module, said = fresh("modules")
    assert len(said) == 1
    assert "`torch.nn.Module._forward_hooks`" in said[0]
    assert module.hooks_after(_Bare()) == {}


def _tracking(room: Any) -> Any:
    class Tracking(room.Moving):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.beside = torch.ones(2)

        def moved(self, move: Any) -> None:
            self.beside = move(self.beside)

    return Tracking()


def test_a_moving_module_takes_along_what_it_says() -> None:
    layer = _tracking(modules)
    outer = nn.Sequential(layer).double()
    assert outer[0] is layer
    assert layer.beside.dtype == layer.weight.dtype == torch.float64
    assert layer.float() is layer
    assert layer.beside.dtype == torch.float32


def test_without_a_common_end_of_all_moves_nothing_is_taken_along(monkeypatch: pytest.MonkeyPatch) -> None:
    without("torch.nn.Module._apply", monkeypatch)
    module, said = fresh("modules")
    assert len(said) == 1
    assert "the noise of a layer stays where it is" in said[0]
    assert float(_tracking(module).beside.sum()) == 2
