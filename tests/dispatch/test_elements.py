"""Which elements a value has: what moved, what was overwritten since, and what was cut apart."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from momentprop import Normal
from momentprop.dispatch.elements import elements_of, may_repeat, numbers, related, share


def _value(*shape: int) -> Normal:
    return Normal(torch.randn(shape), 1.0)


def test_numbers_are_those_of_the_elements_that_moved() -> None:
    x = _value(2, 3)
    (of_x, of_y), count = numbers(x, torch.cat([x.T, torch.zeros(3, 1)], 1))
    assert of_x.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert of_y.tolist() == [[1, 4, 0], [2, 5, 0], [3, 6, 0]]
    assert count == 7


def test_two_values_have_different_numbers() -> None:
    x, y = _value(2), _value(2)
    (first, second), _ = numbers(torch.stack([x, y]), y.flip(0))
    assert first.tolist() == [[1, 2], [3, 4]] or first.tolist() == [[3, 4], [1, 2]]
    assert second.tolist() == first[1].flip(0).tolist()


def test_conversions_are_the_same_elements() -> None:
    x = _value(3)
    assert elements_of(x.double()) is elements_of(x.clone()) is elements_of(x)


OVERWRITTEN: dict[str, Callable[[Normal, Normal], Any]] = {
    "the value": lambda x, y: x.relu_(),  # type: ignore[attr-defined]
    "the moved": lambda x, y: y.relu_(),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("what", OVERWRITTEN)
@pytest.mark.parametrize("view", [False, True])
def test_what_was_overwritten_has_other_elements(what: str, view: bool) -> None:
    x = _value(3)
    y = x.view(3) if view else x.flip(0)
    assert share(x, y)
    OVERWRITTEN[what](x, y)
    assert not share(x, y)


def test_functions_are_related_and_share_nothing() -> None:
    x = _value(4)
    y = torch.tanh(x).flip(0)
    assert related(x, y)
    assert related(x[:2].exp(), y[2:])
    assert not share(x, y)
    assert not related(x, torch.tanh(_value(4)))


CUT: list[tuple[Callable[[Any], Any], Callable[[Any], Any], bool]] = [
    (lambda x: x[0], lambda x: x[1], True),
    (lambda x: x[0], lambda x: x[-4], False),
    (lambda x: x[:2], lambda x: x[2:], True),
    (lambda x: x[:3], lambda x: x[2:], False),
    (lambda x: x[..., 0], lambda x: x[..., 1], True),
    (lambda x: x[..., :1], lambda x: x[..., 1:], True),
    (lambda x: x[:, 0], lambda x: x[..., 1], False),  # not seen
    (lambda x: x[::2], lambda x: x[1::2], False),  # not seen
    (lambda x: x[None, 0], lambda x: x[None, 1], False),  # not seen
    (lambda x: x.select(1, 0), lambda x: x.select(1, 2), True),
    (lambda x: x[0].T if x.ndim > 2 else x[0], lambda x: x[1:].reshape(-1), True),
    (lambda x: torch.cat([x[:1], x[1:2]]), lambda x: x[2:], True),
    (lambda x: torch.cat([x[:1], x[2:3]]), lambda x: x[2:], False),
]


@pytest.mark.parametrize(("first", "second", "apart"), CUT)
def test_what_is_cut_apart(first: Any, second: Any, apart: bool) -> None:
    x = _value(4, 3)
    a, b = first(x), second(x)
    assert share(a, b) is related(a, b) is not apart
    if apart:
        (of_a, of_b), _ = numbers(a, b)
        assert not set(of_a.flatten().tolist()) & set(of_b.flatten().tolist())


def test_parts_of_one_call_are_apart() -> None:
    first, second = _value(4, 3).chunk(2)
    assert not share(first, second)
    assert not share(first.T, second.view(-1))


REPEATS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "a slice": (lambda x: x[None, ..., 1:], False),
    "an index": (lambda x: x[torch.tensor([0, 0])], True),
    "a stack of halves": (lambda x: torch.stack(list(x.chunk(2))), False),
    "a stack of one": (lambda x: torch.stack([x, x]), True),
    "a value beside its transpose": (lambda x: torch.cat([x, x.T]), True),
    "a choice": (lambda x: torch.where(torch.eye(4) > 0, x, torch.zeros(4, 4)), False),
    "a spread choice": (lambda x: torch.where(torch.eye(4) > 0, x[0], torch.zeros(4, 4)), True),
    "zeros around": (lambda x: torch.nn.functional.pad(x, (1, 1)), False),
    "a border": (lambda x: torch.nn.functional.pad(x, (1, 1), mode="replicate"), True),
    "later": (lambda x: x.repeat(2, 1).T[1:], True),
}


@pytest.mark.parametrize("name", REPEATS)
def test_what_may_repeat(name: str) -> None:
    function, wanted = REPEATS[name]
    y = function(_value(4, 4))
    assert may_repeat(elements_of(y)) is wanted
    if not wanted:
        found = numbers(y)[0][0]
        found = found[found > 0]
        assert found.unique().numel() == found.numel()


def test_what_moved_does_not_keep_the_memory_of_what_it_was_moved_from() -> None:
    x = _value(3)
    memory: weakref.ref[Tensor] = weakref.ref(x.loc)
    y = x.repeat(2)
    del x
    gc.collect()
    assert memory() is None
    assert numbers(y)[0][0].tolist() == [1, 2, 3, 1, 2, 3]
