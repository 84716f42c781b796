"""Kernels that are made anew for every call are the same if they hold the same."""

from functools import partial

import pytest
import torch

from momentprop.codegen.identity import Unidentified, identity_of


def scaled(scale):
    return lambda x: x * scale


def powered(x, exponent=2):
    return x**exponent


def shifted(shift, scale):
    def function(x, *, by=scale):
        return x * by + shift

    return function


@pytest.mark.parametrize(
    "make",
    [
        lambda: powered,
        lambda: torch.relu,
        lambda: scaled(2.0),
        lambda: partial(powered, exponent=3),
        lambda: partial(scaled(2.0), 1.0),
        lambda: scaled(partial(powered, exponent=3)),
        lambda: [1.0, None, torch.float32, "none"],
        lambda: shifted(1.0, 2.0),
    ],
)
def test_the_same_made_twice_is_the_same(make):
    assert identity_of(make()) == identity_of(make())
    assert hash(identity_of(make())) == hash(identity_of(make()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (scaled(2.0), scaled(3.0)),
        (scaled(1), scaled(1.0)),
        (scaled(True), scaled(1)),
        (partial(powered, exponent=2), partial(powered, exponent=3)),
        (partial(powered, 2), partial(powered, exponent=2)),
        (partial(powered, 2), partial(powered, 3)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x, by=1: x + by, lambda x, by=2: x + by),
        (shifted(1.0, 2.0), shifted(1.0, 3.0)),
        ((1, 2), [1, 2]),
        (torch.relu, torch.tanh),
    ],
)
def test_what_may_differ_is_not_the_same(one, other):
    assert identity_of(one) != identity_of(other)


@pytest.mark.parametrize("held", [torch.ones(()), [torch.ones(())], torch.nn.ReLU(), torch.ones(1).mul])
def test_what_may_change_has_no_identity(held):
    with pytest.raises(Unidentified):
        identity_of(scaled(held))
