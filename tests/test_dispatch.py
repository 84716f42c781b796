"""Every spelling of an operation finds its rule, in place or not, and what cannot be done says so and where."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import momentprop
from momentprop import Fitted, Logistic, Mean, MissingRule, Normal, Sample, dispatch
from momentprop.values import Value


def _x(*shape, **kwargs):
    generator = torch.Generator().manual_seed(0)
    return Normal(torch.randn(*shape, generator=generator, **kwargs), torch.rand(*shape, generator=generator, **kwargs))


def _assert_same(found, wanted):
    assert type(found) is type(wanted)
    assert torch.equal(found.loc, wanted.loc)
    assert torch.equal(found.variance, wanted.variance)


# Missing rules


class Strange(nn.Module):
    def forward(self, x):
        return torch.special.digamma(x)


def test_a_missing_rule_names_the_operation_the_type_and_the_module_and_the_remedy():
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU(), Strange()))
    with pytest.raises(
        MissingRule,
        match=r"no Normal rule for 'special_digamma' at module '1.1' \(Strange\) of Sequential; "
        r"add one with `@momentprop.rule\('special_digamma', on=momentprop.Normal\)`",
    ):
        model(_x(3))


def test_a_missing_rule_names_a_lone_module_and_the_top_level():
    with pytest.raises(MissingRule, match="at module Strange; add one"):
        Strange()(_x(3))
    with pytest.raises(MissingRule, match="no Logistic rule for 'digamma' at top level"):
        torch.digamma(Logistic(torch.ones(2), 1.0))
    with pytest.raises(MissingRule, match="no Normal rule for 'digamma' at top level"):
        _x(3).digamma()


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
    _assert_same(torch.digamma(x), wanted)
    _assert_same(x.digamma(), wanted)
    y = x.clone()
    assert y.digamma_() is y
    _assert_same(y, wanted)
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
        torch.digamma(_x(2))


def test_a_function_can_be_made_an_operation():
    @momentprop.operation
    def halved(x, by=2.0):
        """Half of x."""
        return x / by

    assert halved(torch.ones(2)).tolist() == [0.5, 0.5]
    assert halved.__doc__ == "Half of x."
    with pytest.raises(MissingRule, match="no Normal rule for 'halved'"):
        halved(_x(2))

    @momentprop.rule("halved", on=Normal)
    def halved_moments(x, by=2.0):
        return x.of(x.loc / by, x.variance / by**2)

    try:
        x = _x(2)
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
            nn.Sequential(nn.Identity(), Strange2())(_x(2))
        assert caught.value.__notes__ == ["in the Normal rule for 'digamma' at module '1' (Strange2) of Sequential"]
    finally:
        dispatch.forget("digamma", on=Normal)


class Strange2(nn.Module):
    def forward(self, x):
        return torch.digamma(x)


def test_two_families_do_not_meet():
    with pytest.raises(
        TypeError, match="'add' was given a Normal and a Logistic at top level; the values of one operation must be"
    ):
        _x(2) + Logistic(torch.zeros(2), 1.0)
    with pytest.raises(TypeError, match="'cat' was given a Normal and a Mean"):
        torch.cat([_x(2), Mean(torch.zeros(2))])


# Spellings


def test_reflected_operators_keep_their_order():
    x = _x(3)
    _assert_same(1 - x, -(x - 1))
    _assert_same(torch.ones(3) - x, -(x - torch.ones(3)))
    _assert_same(torch.rsub(x, 1), 1 - x)
    _assert_same(2 * x, x * 2)
    _assert_same(torch.full((3,), 2.0) * x, x * 2)


@pytest.mark.parametrize("family", [Mean, Sample])
def test_reflected_operators_of_certain_values_keep_their_order(family):
    loc = torch.tensor([1.0, 2.0])
    x = family(loc)
    for found, wanted in (
        (3 - x, 3 - loc),
        (0.5 * x, 0.5 * loc),
        (1 / x, 1 / loc),
        (2**x, 2**loc),
        (torch.ones(2) - x, 1 - loc),
        (torch.rsub(x, 1), 1 - loc),
    ):
        assert type(found) is family
        assert torch.equal(found.loc, wanted)


def test_synonyms_reach_the_same_rule():
    x = _x(3)
    _assert_same(torch.absolute(x), abs(x))
    _assert_same(torch.subtract(x, 1.0), x - 1.0)
    _assert_same(torch.multiply(x, 2.0), x * 2.0)
    _assert_same(torch.divide(x, 2.0), x / 2.0)
    _assert_same(torch.true_divide(x, 2.0), x / 2.0)
    _assert_same(torch.negative(x), -x)
    _assert_same(torch.concat([x, x]), torch.cat([x, x]))
    _assert_same(_x(2, 3).swapaxes(0, 1), _x(2, 3).transpose(0, 1))


def test_inplace_by_keyword_by_position_and_by_module():
    for run in (
        lambda x: F.relu(x, inplace=True),
        lambda x: F.relu(x, True),
        lambda x: F.leaky_relu(x, 0.0, True),
        nn.ReLU(inplace=True),
        F.relu_,
        torch.relu_,
        lambda x: x.relu_(),
    ):
        x = _x(3)
        assert run(x) is x
        _assert_same(x, torch.relu(_x(3)))


def test_inplace_by_position_reaches_the_dispatcher_when_compiled():
    """Eager torch turns positions into keywords, dynamo does not."""
    torch.compiler.reset()

    def run(x):
        y = x * 1.0
        F.leaky_relu(y, 0.1, True)
        return y

    found, wanted = torch.compile(run, fullgraph=True, backend="eager")(_x(3)), F.leaky_relu(_x(3), 0.1)
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.variance, wanted.variance)


def test_inplace_false_leaves_the_value():
    x = _x(3)
    F.relu(x, inplace=False)
    F.leaky_relu(x, 0.1, False)
    _assert_same(x, _x(3))


# In-place operations and views


def test_an_in_place_operation_without_views_rebinds():
    loc, variance = torch.randn(3), torch.rand(3)
    x = Normal(loc, variance)
    kept = loc.clone()
    x += 1
    assert torch.equal(loc, kept)
    assert torch.equal(x.loc, kept + 1)


def test_a_plain_tensor_cannot_take_a_value_in_place():
    plain = torch.zeros(3)
    with pytest.raises(
        RuntimeError, match="in-place 'add' at top level would write a random value into a plain tensor"
    ):
        plain += _x(3)
    with pytest.raises(RuntimeError, match=r"in-place 'mul' .* use the out-of-place operation"):
        plain.mul_(_x(3))
    with pytest.raises(RuntimeError, match="in-place 'setitem'"):
        plain[0] = _x(1)[0]
    assert plain.tolist() == [0.0, 0.0, 0.0]


PROGRAMS = {
    "a view is written": lambda x: _after(x, x[1:].mul_(2.0)),
    "the base is written after a view": lambda x: _in_turn(x, lambda view: x.mul_(3.0), lambda view: view),
    "a view is assigned": lambda x: _after(x, x.view(-1)[:2].add_(1.0)),
    "an element is set": lambda x: _after(x, x.__setitem__((0, 1), 5.0)),
    "a row is set from another": lambda x: _after(x, x.__setitem__(0, x[1] * 2.0)),
    "a view of a view": lambda x: _after(x, x.transpose(0, 1)[0].mul_(-1.0)),
    "augmented assignment of a slice": lambda x: _slice_added(x),
    "used before it is written": lambda x: _used_before(x),
}


def _after(x, _):
    return x


def _in_turn(x, write, read):
    view = x[0]
    write(view)
    return read(view)


def _slice_added(x):
    x[:, 1] += 2.0
    return x


def _used_before(x):
    y = x * 3.0
    y[0].mul_(2.0)
    return y + x * 0.5


def _run(program, tensor):
    """The program on a fresh, non-leaf tensor or value."""
    return program(tensor * 1.0)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_views_written_in_place_do_as_torch_does(program):
    """Linear programs: the mean is the program itself, the variance the program with squared factors."""
    loc = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    y = _run(program, Normal(loc, variance))
    wanted = _run(program, loc)
    torch.testing.assert_close(y.loc, wanted)
    weights = torch.randn(wanted.shape, dtype=torch.float64)
    (found,) = torch.autograd.grad((y.loc * weights).sum(), loc)
    torch.testing.assert_close(found, torch.autograd.grad((wanted * weights).sum(), loc)[0])
    jacobian = torch.autograd.functional.jacobian(functools.partial(_run, program), loc)
    if program is not PROGRAMS["used before it is written"]:  # there one value enters twice
        squared = torch.einsum("...ij,ij->...", jacobian**2, variance.detach())
        torch.testing.assert_close(y.variance, squared)
        (by_variance,) = torch.autograd.grad((y.variance * weights).sum(), variance)
        torch.testing.assert_close(by_variance, torch.einsum("...ij,...->ij", jacobian**2, weights))


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_compiled_views_written_in_place_equal_eager(program):
    torch.compiler.reset()
    x = _x(2, 3)
    found = torch.compile(functools.partial(_run, program), fullgraph=True, backend="aot_eager")(x)
    wanted = _run(program, x)
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.variance, wanted.variance)


def test_what_autograd_saved_survives_in_place_writes_through_a_view():
    loc = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    base = Normal(loc, torch.ones(2, 3, dtype=torch.float64))
    x = base * 1.0
    x[0].relu_()
    x[0].relu_()
    wanted = torch.stack([torch.relu(torch.relu(base[0])), base[1]])
    torch.testing.assert_close(x.variance, wanted.variance)
    for found, direct in ((x.loc, wanted.loc), (x.variance, wanted.variance)):
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), loc, retain_graph=True),
            torch.autograd.grad(direct.sum(), loc, retain_graph=True),
        )


def test_modules_with_residual_additions_in_place():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            out = self.linear(x)
            out += x
            return F.relu(out, inplace=True)

    block = Block()
    x = _x(2, 3)
    _assert_same(block(x), torch.relu(block.linear(x) + x))
    _assert_same(x, _x(2, 3))


def test_values_hidden_in_lists_are_found():
    x = _x(2)
    assert list(dispatch.values_in(([x], (x, 1)), {"other": x})) == [x, x, x]
    assert isinstance(torch.stack([torch.zeros(2), x]), Value)
