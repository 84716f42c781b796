from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

from momentprop.torch_compat import functorch
from tests.torch_compat.gone import loaded_without


def _seen(transform: Callable[..., Any], ask: Callable[..., Any]) -> Any:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(ask(x))
        return (x * x).sum()

    transform(function)(torch.ones(2, 3))
    return seen[0]


def _forward(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: jvp(function, (x,), (torch.ones_like(x),))[1]


@pytest.mark.parametrize("transform", [grad, vmap, _forward])
def test_a_transform_is_seen_by_its_tensors_and_without_them(transform: Callable[..., Any]) -> None:
    assert _seen(transform, functorch.is_wrapped) is True
    assert _seen(transform, lambda _: functorch.is_transforming()) is True
    assert not functorch.is_wrapped(torch.ones(1))
    assert not functorch.is_transforming()


def test_forward_mode_is_seen_inside_a_dual_level() -> None:
    assert not functorch.is_forward_mode()
    with forward_ad.dual_level():
        assert functorch.is_forward_mode()
    assert not functorch.is_forward_mode()


@pytest.mark.parametrize(
    ("transform", "levels"), [(grad, 0), (_forward, 1), (lambda f: _forward(_forward(f)), 2), (lambda f: f, 0)]
)
def test_forward_levels_are_counted(transform: Callable[..., Any], levels: int) -> None:
    assert _seen(transform, lambda _: functorch.forward_levels()) == levels


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("torch._C._functorch.is_functorch_wrapped_tensor", lambda module: module.is_wrapped(torch.ones(1))),
        ("torch._C._functorch.peek_interpreter_stack", lambda module: module.is_transforming()),
        ("torch.autograd.forward_ad._current_level", lambda module: module.is_forward_mode()),
        ("torch._C._functorch.get_interpreter_stack", lambda module: module.forward_levels() == 0),
        ("torch._C._functorch.TransformType", lambda module: module.forward_levels() == 0),
    ],
)
def test_without_a_way_to_ask_a_transform_is_assumed(
    path: str, answer: Callable[[Any], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(loaded_without(path, "functorch", monkeypatch)) is True
