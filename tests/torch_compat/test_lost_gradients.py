from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from momentprop import Normal
from momentprop.torch_compat import lost_gradients
from tests.torch_compat.gone import loaded_without


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.add(x, x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


def _value() -> Normal:
    return Normal(torch.ones(2, requires_grad=True), 1.0)


def test_a_function_that_would_drop_gradients_is_named() -> None:
    with pytest.raises(RuntimeError, match="the autograd function '_Doubled' at top level would lose the gradients"):
        _Doubled.apply(_value())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")  # of torch, about tensors
def test_reentrant_checkpointing_is_named() -> None:
    with pytest.raises(RuntimeError, match="reentrant checkpointing at top level would lose the gradients"):
        checkpoint(torch.relu, _value(), use_reentrant=True)


def test_without_gradients_nothing_is_lost() -> None:
    assert _Doubled.apply(Normal(torch.ones(2), 1.0)).loc.shape == (2,)
    with torch.no_grad():
        lost_gradients.refuse_lost_gradients([_value()], str)


class _Asks(torch.autograd.Function):
    """Asks a module of the room whether gradients are lost."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, room: Any) -> torch.Tensor:
        room.refuse_lost_gradients([_value()], lambda: "here")
        return x.clone()


def test_where_torch_calls_functions_otherwise_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="'_Asks' at here would lose"):
        _Asks.apply(torch.ones(1), lost_gradients)
    module = loaded_without("torch.autograd.Function.apply.__func__.__code__", "lost_gradients", monkeypatch)
    _Asks.apply(torch.ones(1), module)


def test_without_its_function_checkpointing_is_refused_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "torch.utils.checkpoint.CheckpointFunction"
    module = loaded_without(path, "lost_gradients", monkeypatch)

    def ask(x: torch.Tensor) -> torch.Tensor:
        module.refuse_lost_gradients([_value()], lambda: "here")
        return x.clone()

    with pytest.raises(RuntimeError, match="'CheckpointFunction' at here would lose"):
        checkpoint(ask, torch.ones(1, requires_grad=True), use_reentrant=True)
