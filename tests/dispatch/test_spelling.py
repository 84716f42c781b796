"""Every spelling of an operation finds its rule."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Mean, Sample, dispatch
from momentprop.values import Value
from tests.dispatch.inputs import a_value, assert_same


def test_reflected_operators_keep_their_order():
    x = a_value(3)
    assert_same(1 - x, -(x - 1))
    assert_same(torch.ones(3) - x, -(x - torch.ones(3)))
    assert_same(torch.rsub(x, 1), 1 - x)
    y = a_value(3).mul(3.0)
    assert_same(torch.rsub(x, y), y - x)
    assert_same(torch.rsub(x, y, alpha=2), y - 2 * x)
    assert_same(x.__rsub__(y), y - x)
    assert_same(2 * x, x * 2)
    assert_same(torch.full((3,), 2.0) * x, x * 2)


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
    x = a_value(3)
    assert_same(torch.absolute(x), abs(x))
    assert_same(torch.subtract(x, 1.0), x - 1.0)
    assert_same(torch.multiply(x, 2.0), x * 2.0)
    assert_same(torch.divide(x, 2.0), x / 2.0)
    assert_same(torch.true_divide(x, 2.0), x / 2.0)
    assert_same(torch.negative(x), -x)
    assert_same(torch.concat([x, x]), torch.cat([x, x]))
    assert_same(a_value(2, 3).swapaxes(0, 1), a_value(2, 3).transpose(0, 1))
    assert_same(torch.linalg.matmul(a_value(2, 3), torch.ones(3)), a_value(2, 3) @ torch.ones(3))
    assert_same(torch.ger(x, torch.ones(2)), torch.outer(x, torch.ones(2)))


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
        x = a_value(3)
        assert run(x) is x
        assert_same(x, torch.relu(a_value(3)))


def test_inplace_by_position_reaches_the_dispatcher_when_compiled():
    """Eager torch turns positions into keywords, dynamo does not."""
    torch.compiler.reset()

    def run(x):
        y = x * 1.0
        F.leaky_relu(y, 0.1, True)
        return y

    found, wanted = torch.compile(run, fullgraph=True, backend="eager")(a_value(3)), F.leaky_relu(a_value(3), 0.1)
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.variance, wanted.variance)


def test_inplace_false_leaves_the_value():
    x = a_value(3)
    F.relu(x, inplace=False)
    F.leaky_relu(x, 0.1, False)
    assert_same(x, a_value(3))


def test_values_hidden_in_lists_are_found():
    x = a_value(2)
    assert list(dispatch.values_in(([x], (x, 1)), {"other": x})) == [x, x, x]
    assert isinstance(torch.stack([torch.zeros(2), x]), Value)
