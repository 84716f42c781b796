"""The rule table: missing rules, rules of the user, and errors inside rules."""

import pytest
import torch
from torch import nn

import momentprop
from momentprop import Fitted, Logistic, Mean, MissingRule, Normal, Sample, dispatch
from momentprop.dispatch.registry import elementwise
from momentprop.dispatch.rule_table import operation_named
from momentprop.kernels.moments import Moments
from tests.dispatch.inputs import a_value, assert_same

# Missing rules


class Strange(nn.Module):
    def forward(self, x):
        return torch.special.digamma(x)


def test_a_missing_rule_names_operation_type_module_and_remedy():
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU(), Strange()))
    with pytest.raises(
        MissingRule,
        match=r"no Normal rule for 'special_digamma' at module '1.1' \(Strange\) of Sequential: "
        r"add one with `@momentprop.rule\('special_digamma', on=momentprop.Normal\)`",
    ):
        model(a_value(3))


def test_a_missing_rule_names_a_lone_module_and_the_top_level():
    with pytest.raises(MissingRule, match="at module Strange: add one"):
        Strange()(a_value(3))
    with pytest.raises(MissingRule, match="no Logistic rule for 'digamma' at top level"):
        torch.digamma(Logistic(torch.ones(2), 1.0))
    with pytest.raises(MissingRule, match="no Normal rule for 'digamma' at top level"):
        a_value(3).digamma()


def test_a_missing_rule_is_a_not_implemented_error():
    assert issubclass(MissingRule, NotImplementedError)


@pytest.mark.parametrize("family", [Mean, Sample])
def test_certain_values_need_no_rule(family):
    x = family(torch.rand(3) + 1)
    y = torch.digamma(x)
    assert type(y) is family
    assert torch.equal(y.loc, torch.digamma(x.loc))


# Rules of the user


@pytest.fixture
def user_rule():
    @momentprop.rule("digamma", on=Normal)
    def digamma(input):
        """Moments by linearization.

        More text.

        Error: of second order
          in the deviation
        Source: Taylor
        """
        return input.of(torch.digamma(input.loc), input.variance * torch.polygamma(1, input.loc) ** 2)

    yield digamma
    dispatch.forget("digamma", on=Normal)


def test_a_rule_of_the_user_serves_all_spellings_and_subtypes(user_rule):
    x = Normal(torch.rand(3) + 1, 0.1)
    wanted = user_rule(x)
    assert_same(torch.digamma(x), wanted)
    assert_same(x.digamma(), wanted)
    y = x.clone()
    assert y.digamma_() is y
    assert_same(y, wanted)
    assert type(torch.digamma(Fitted(x.loc, x.variance))) is Fitted


def test_the_rule_table_has_a_row_with_the_fields_of_the_docstring(user_rule):
    (row,) = (row for row in momentprop.rules.table() if row.op == "digamma")
    assert row == dispatch.Rule("digamma", Normal, user_rule)
    assert row.summary == "Moments by linearization"
    assert row.error == "of second order in the deviation"
    assert row.source == "Taylor"


def test_a_rule_without_a_docstring_has_empty_fields():
    row = dispatch.Rule("nothing", Normal, lambda input: input)
    assert (row.summary, row.error, row.source) == ("", "", "")


def test_every_shipped_rule_states_its_error_and_its_source():
    incomplete = [
        (row.op, row.on.__name__)
        for row in momentprop.rules.table()
        if row.function.__module__.startswith("momentprop.") and not (row.summary and row.error and row.source)
    ]
    assert incomplete == []


def test_the_rule_of_the_nearest_type_is_taken():
    class Special(Normal):
        pass

    @momentprop.rule("relu", on=Special)
    def relu(input, inplace=False):
        return input.of(input.loc + 100, input.variance)

    try:
        x = Special(torch.zeros(2), 1.0)
        assert torch.relu(x).loc.tolist() == [100.0, 100.0]
        assert type(torch.abs(x)) is Special
        assert torch.relu(Normal(torch.zeros(2), 1.0)).loc.tolist() == pytest.approx([0.3989, 0.3989], abs=1e-4)
    finally:
        dispatch.forget("relu", on=Special)


def test_a_forgotten_rule_is_missing_again():
    momentprop.rule("digamma", on=Normal)(lambda input: input)
    dispatch.forget("digamma", on=Normal)
    with pytest.raises(MissingRule):
        torch.digamma(a_value(2))


def test_a_function_can_be_made_an_operation():
    @momentprop.operation
    def halved(x, by=2.0):
        """Half of x."""
        return x / by

    assert halved(torch.ones(2)).tolist() == [0.5, 0.5]
    assert halved.__doc__ == "Half of x."
    with pytest.raises(MissingRule, match="no Normal rule for 'halved'"):
        halved(a_value(2))

    @momentprop.rule("halved", on=Normal)
    def halved_moments(x, by=2.0):
        return x.of(x.loc / by, x.variance / by**2)

    try:
        x = a_value(2)
        assert torch.equal(halved(x, by=4.0).loc, x.loc / 4)
    finally:
        dispatch.forget("halved", on=Normal)


# Errors inside rules


def test_the_failure_of_a_rule_carries_the_place():
    @momentprop.rule("digamma", on=Normal)
    def digamma(input):
        raise ValueError("no")

    try:
        with pytest.raises(ValueError, match="no") as caught:
            nn.Sequential(nn.Identity(), Strange2())(a_value(2))
        assert caught.value.__notes__ == ["in the Normal rule for 'digamma' at module '1' (Strange2) of Sequential"]
    finally:
        dispatch.forget("digamma", on=Normal)


class Strange2(nn.Module):
    def forward(self, x):
        return torch.digamma(x)


def test_two_families_do_not_meet():
    with pytest.raises(
        TypeError, match="'add' was given a Normal and a Logistic at top level: the values of one operation must be"
    ):
        a_value(2) + Logistic(torch.zeros(2), 1.0)
    with pytest.raises(TypeError, match="'cat' was given a Normal and a Mean"):
        torch.cat([a_value(2), Mean(torch.zeros(2))])


# Elementwise functions that are made once


@pytest.fixture
def made():
    """A new elementwise operation, and the arguments of each time that its function was made."""
    calls = []

    def make(input, slope=1.0):
        calls.append(slope)
        return dispatch.Transform(
            lambda mean, variance: Moments(slope * mean, slope**2 * variance), lambda x: slope * x
        )

    def scaled(input, slope=1.0):
        return slope * input

    operation = dispatch.operation(scaled)
    elementwise("scaled", on=Normal, once=True)(make)
    yield operation, calls, make
    forgotten = operation_named("scaled")
    forgotten.makers.clear()


def test_a_function_of_numbers_is_made_once(made):
    operation, calls, _ = made
    for slope in (2.0, 2.0, 3.0, 2.0):
        y = operation(Normal(torch.ones(2), 1.0), slope)
        assert torch.equal(y.loc, torch.full((2,), slope))
    assert calls == [2.0, 3.0]


def test_a_function_of_a_tensor_is_made_each_time(made):
    operation, calls, _ = made
    slope = torch.tensor(2.0)
    assert operation(Normal(torch.ones(2), 1.0), slope).loc[0] == 2
    slope.fill_(3.0)
    assert operation(Normal(torch.ones(2), 1.0), slope).loc[0] == 3
    assert len(calls) == 2


def test_a_new_registration_forgets_the_functions_made_before(made):
    operation, calls, make = made
    operation(Normal(torch.ones(2), 1.0), 2.0)
    elementwise("scaled", on=Normal)(make)
    operation(Normal(torch.ones(2), 1.0), 2.0)
    operation(Normal(torch.ones(2), 1.0), 2.0)
    assert calls == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("op", [op.name for op in dispatch.rule_table.operations() if getattr(op, "once", None)])
def test_functions_made_once_do_not_read_the_value(op):
    operation = operation_named(op)
    for on in operation.once:
        assert isinstance(operation.makers[on](None), dispatch.Transform)
