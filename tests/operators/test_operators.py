"""Torch's operator tests, with values in place of tensors.

`op_db` takes seconds to import, so that the tests walk the operators themselves, a part in each test.
"""

from itertools import chain

import pytest

from tests.operators import batched
from tests.operators.catalogue import Operator, all_operators, operators
from tests.operators.exceptions import EXCEPTIONS, Exception_
from tests.operators.trials import HALF, TRIED_IN_HALF, WIDE, Trial, refusals, with_variance, without_variance

PARTS = 16


def part_of(part: int, parts: int = PARTS) -> tuple[Operator, ...]:
    return operators()[part::parts]


def wrong(trials) -> list[str]:
    return [str(trial) for trial in trials if not trial.agrees and trial.exception is None]


@pytest.mark.parametrize("part", range(4))
def test_operators_without_variance_are_torchs_on_their_first_samples(part):
    for operator in part_of(part, 4):
        assert not wrong(without_variance(operator, 2, WIDE[:1]))


def test_the_table_of_exceptions_names_operators():
    names = {operator.name for operator in operators()}
    for each in EXCEPTIONS:
        assert each.operators == "*" or set(each.operators.split()) <= names
        assert each.reason.endswith(".")


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_without_variance_are_torchs(part):
    for operator in part_of(part):
        assert not wrong(without_variance(operator))
        if operator.name in TRIED_IN_HALF:
            assert not wrong(without_variance(operator, dtypes=HALF))


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_refuse_what_torch_refuses(part):
    for operator in part_of(part):
        assert not wrong(refusals(operator))


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_with_variance_agree_with_draws(part):
    for operator in part_of(part):
        assert not wrong(with_variance(operator))


@pytest.mark.full
@pytest.mark.parametrize("row", EXCEPTIONS, ids=str)
def test_an_exception_still_is_one(row):
    assert any(_needs(trial, row) for operator in operators() for trial in _trials(operator, row))


def _trials(operator: Operator, row: Exception_):
    if row.operators != "*" and operator.name not in row.operators.split():
        return ()
    if row.against_draws:
        return with_variance(operator)
    return chain(without_variance(operator), refusals(operator))


def _needs(trial: Trial, row: Exception_) -> bool:
    return not trial.agrees and trial.exception is row


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_draws_at_once_are_those_made_singly(part):
    for info in all_operators()[part::PARTS]:
        assert not list(batched.wrong(Operator(info, ""), 8))
