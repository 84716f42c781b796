"""What is recorded of a function, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from momentprop.codegen.formula import Reference_, Unprintable, record, recording
from tests.codegen.conftest import recorded

ROOT = Path(__file__).parents[2]
TABLE = torch.ones(2, 3)


def ops(function, inputs=1, row=None):
    return [step.op for step in recorded(function, inputs, row=row).steps]


def test_steps_that_no_output_needs_are_left_out():
    assert ops(lambda x: [(x.sin(), x.exp() + 1)[1]]) == ["exp", "add"]


def test_a_step_that_is_repeated_is_recorded_once():
    assert ops(lambda x: [x.exp() * x.exp(), x.exp()]) == ["exp", "mul"]


def test_references_and_outputs_are_counted_from_the_inputs_on():
    formula = recorded(lambda x, y: [y, (x - y).exp()], 2)
    assert [step.arguments for step in formula.steps] == [(Reference_(0), Reference_(1)), (Reference_(2),)]
    assert formula.outputs == (1, 3)


def test_a_tensor_that_is_written_to_holds_the_new_result():
    def function(x):
        y = x + 1
        y.mul_(2)
        return [y]

    assert ops(function) == ["add", "mul"]


def test_derivatives_are_recorded():
    def gradient(x, grad):
        return torch.autograd.grad(x.tanh(), x, grad)

    assert ops(gradient, 2) == ["tanh", "tanh_backward"]


def test_sums_along_rows_need_rows():
    def centred(x):
        return [x - x.sum(-1, keepdim=True)]

    formula = recorded(centred, row=5)
    assert [(step.op, step.wide) for step in formula.steps] == [("sum", False), ("sub", True)]
    with pytest.raises(Unprintable, match="sum not along a row"):
        recorded(centred)


def test_single_numbers_from_outside_are_constants():
    number = torch.tensor(0.5)
    formula = recorded(lambda x: [x * number])
    assert formula.steps[0][:2] == ("constant", (0.5,))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: [x * x.new_ones(()).item()], "its formula looks at the data"),
        (lambda x: [x * TABLE], "a tensor of unknown content"),
        (lambda x: [x.sort()[0]], "sort"),
        (lambda x: [x.digamma()], "digamma"),
        (lambda x: [torch.add(x, x, alpha=2)], "add with alpha"),
        (lambda x: [torch.div(x, 2, rounding_mode="floor")], "a rounded division"),
        (lambda x: [x.to(torch.int64).exp()], "of type torch.int64"),
        (lambda x: [x + x.new_ones(4, 2, 3)], "changes the shape"),
        (lambda x: [x.reshape(7)], "invalid for input"),
    ],
)
def test_what_no_loop_can_do_is_refused(function, reason):
    with pytest.raises(Unprintable, match=reason):
        recorded(function)
    assert not recording()


def test_recording_does_not_import_dynamo():
    """That would take longer than all compilers: a second, in the first call of a process."""
    program = (
        "import sys, torch\n"
        "from tests.codegen.conftest import recorded\n"
        "formula = recorded(lambda x: [x.relu() + torch.where(x > 0, x, x.exp())])\n"
        "print(len(formula.steps), 'torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "5 False\n"


def test_what_a_softmax_is_made_of_is_recorded():
    steps = recorded(lambda x: [torch.softmax(x, -1)], row=5).steps
    assert [step.op for step in steps] == ["amax", "sub", "exp", "sum", "div"]
    assert [step.wide for step in steps] == [False, True, True, False, True]


def test_a_number_for_a_whole_row_is_one():
    formula = record(lambda x, y: [x * y, x.sum(-1, keepdim=True) + y], [True, False], torch.float32, 5)
    assert [formula.kind(number)[1] for number in formula.outputs] == [True, False]
