"""In-place operations and views do as torch does."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Normal
from tests.dispatch.inputs import a_value, assert_same


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
        plain += a_value(3)
    with pytest.raises(RuntimeError, match=r"in-place 'mul' .* use the out-of-place operation"):
        plain.mul_(a_value(3))
    with pytest.raises(RuntimeError, match="in-place 'setitem'"):
        plain[0] = a_value(1)[0]
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
    x = a_value(2, 3)
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
    x = a_value(2, 3)
    assert_same(block(x), torch.relu(block.linear(x) + x))
    assert_same(x, a_value(2, 3))
