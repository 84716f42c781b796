"""Operators, which dynamo treats in its own way, compile to what eager gives."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from momentprop import Normal
from momentprop.torch_compat import dynamo
from tests.stack.compiling import assert_alike, compile_whole


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _added_to_a_view(x: Any, w: Tensor) -> Any:
    y = x[0]
    y += w[0]
    return x


def _divided_and_seen_by_another_name(x: Any, w: Tensor) -> Any:
    x = x.clone()
    y = x
    x /= w
    x -= w
    return y


def _multiplied_in_place(x: Any, w: Tensor) -> Any:
    y = x.clone().view(9)
    y *= w.view(9)
    y @= w.view(9, 1).expand(9, 9)
    return y


OPERATORS: dict[str, Callable[[Any, Tensor], Any]] = {
    "x @ w": lambda x, w: x @ w,
    "w @ x": lambda x, w: w @ x,
    "x @ y": lambda x, w: x @ x.flip(0),
    "x - w": lambda x, w: [x - w, w - x, 2 - x, x - 2],
    "x / w": lambda x, w: [x / w, x / 2],
    "x ** 2": lambda x, w: [x**2, 2**x],
    "x += w": _added_to_a_view,
    "x /= w": _divided_and_seen_by_another_name,
    "x *= w": _multiplied_in_place,
    "tuples": lambda x, w: [torch.cat((x, w)), torch.stack((w, x)), torch.cat((x, x), 1)],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_operators_of_values_and_tensors_equal_eager_ones(name: str) -> None:
    w = torch.arange(1.0, 10.0).reshape(3, 3) / 9

    def run(x: Any) -> Any:
        return OPERATORS[name](x, w)

    assert_alike(run, compile_whole(run, "eager"), Normal(w.flip(1) - 0.4, w / 3))


def test_an_unknown_version_of_dynamo_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"momentprop does not know `torch._dynamo.variables.builtin` of this torch"):
        dynamo._repair("torch._dynamo.variables.builtin", types.ModuleType("other"))
