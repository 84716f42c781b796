"""Tests of the values that carry probes: all components move together, also in views and in place."""

import torch

from momentprop.values import Normal
from momentprop.values.probed import Probed, as_normal, with_probes


def _value() -> Probed:
    kind = with_probes(3)
    loc = torch.arange(6.0).reshape(2, 3)
    return kind.of(loc, loc + 1, torch.arange(18.0).reshape(3, 2, 3))


def test_the_type_of_a_count_is_one() -> None:
    assert with_probes(4) is with_probes(4)
    assert with_probes(4).count == 4
    assert issubclass(with_probes(4), Normal)


def test_a_value_without_probes_has_zeros_and_says_so() -> None:
    value = with_probes(5).of(torch.ones(2), torch.ones(2))
    assert not value.carries
    assert value.probes.shape == (5, 2)
    assert not value.probes.any()


def test_each_moves_every_probe() -> None:
    moved = _value().each(lambda part: part.reshape(6).flip(0))
    assert torch.equal(moved.probes, _value().probes.reshape(3, 6).flip(1))


def test_copies_have_the_probes_in_memory_of_their_own() -> None:
    value = _value()
    copy = value.copied()
    copy.probes.zero_()
    assert bool(value.probes.any())
    assert copy.carries


def test_a_value_with_views_gives_each_probe_its_own_memory() -> None:
    value = with_probes(3).of(torch.ones(1), torch.ones(1))
    value.share()
    value.probes[0] += 1
    assert value.probes.flatten().tolist() == [1.0, 0.0, 0.0]


def test_as_normal_leaves_the_probes_behind() -> None:
    value = _value()
    plain = as_normal(value)
    assert type(plain) is Normal
    assert torch.equal(plain.loc, value.loc)
    assert as_normal(3) == 3
