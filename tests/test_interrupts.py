"""An interrupt at any moment leaves nothing behind: a small part of what `python -m tests.fuzz` tries."""

from random import Random

import pytest
import torch

from momentprop import Normal
from momentprop.torch_compat.modes import bare
from momentprop.undoing import leaves_no_trace
from tests.fuzz import interrupts

MOMENTS = 40
"""The moments of each call; `make test-full` tries 1,000 in all."""


def _strike(name: str, count: int) -> None:
    random, total = Random(f"interrupts of {name}"), interrupts.lines_of(name)
    left = []
    for _ in range(count):
        try:
            interrupts.interrupted(name, random.randint(1, total), total)
        except AssertionError as error:
            left.append(str(error))
    assert left == []


@pytest.mark.parametrize("name", ["propagate, ap1", "propagate, ap2", "propagate, sample"])
def test_an_interrupted_propagation_leaves_nothing_behind(name):
    _strike(name, MOMENTS)


@pytest.mark.parametrize("name", ["check", "calibrate"])
def test_an_interrupted_check_or_calibration_leaves_nothing_behind(name):
    _strike(name, MOMENTS // 10)


@pytest.mark.full
@pytest.mark.parametrize("name", interrupts.CALLS)
def test_a_thousand_interrupts_leave_nothing_behind(name):
    _strike(name, 25 if name == "check" else 75 if name == "calibrate" else 300)


@pytest.mark.parametrize("name", interrupts.CALLS)
def test_a_call_that_is_not_interrupted_leaves_nothing_behind(name):
    assert interrupts.interrupted(name, 0)["interrupts"] == 1


def test_an_interrupt_between_entering_and_the_body_of_a_bare_block_leaves_values_alone():
    @leaves_no_trace
    def interrupted_there() -> None:
        bare().__enter__()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_there()
    assert torch.relu(Normal(torch.zeros(1), 1.0)).loc > 0
