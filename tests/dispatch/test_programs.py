"""Random programs of views and in-place operations do as torch does, for every type of value and layout."""

import pytest

from momentprop import Logistic, Mean, Normal, Sample
from tests.dispatch.programs import check

KINDS = [Normal, Logistic, Mean, Sample]


@pytest.mark.parametrize("first", range(0, 400, 40))
def test_programs_on_values(first: int) -> None:
    for seed in range(first, first + 40):
        check(seed, Normal if seed % 2 else KINDS[seed // 2 % 4])


@pytest.mark.parametrize("first", range(0, 200, 40))
def test_programs_that_write_values_into_plain_tensors(first: int) -> None:
    for seed in range(first, first + 40):
        check(seed, Normal if seed % 2 else KINDS[seed // 2 % 4], plain=True)


@pytest.mark.parametrize("plain", [False, True])
def test_long_programs(plain: bool) -> None:
    for seed in range(20):
        check(seed, Normal, plain=plain, length=25)
