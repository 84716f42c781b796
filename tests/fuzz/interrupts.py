"""An interrupt at a random moment of a call: nothing may be left behind.

The moment is a line of Python, of ours or of torch's, counted from the beginning of the call. So the same seed
interrupts at the same place. Signals strike between lines too, but there is no way to repeat that.
"""

import contextlib
import functools
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import momentprop
from tests.fuzz.left_behind import differences, modes, state

_TRACED = (*(os.path.dirname(module.__file__) + os.sep for module in (momentprop, torch)), contextlib.__file__)


class _Residual(nn.Module):
    """A branch that modes and hooks have to pass."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def forward(self, x: Any) -> Any:
        return x + torch.tanh(self.branch(x))


def a_model() -> nn.Module:
    """A model with dropout, running statistics and frozen parameters, some modules in training and some not."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), _Residual(), nn.ReLU(), nn.Linear(4, 2)]
        model = nn.Sequential(*layers).eval()
    model[3].branch[0].weight.requires_grad_(False)
    model[4].train()
    return model


def _inputs() -> Tensor:
    return torch.linspace(-1, 1, 6).reshape(2, 3)


_GIVEN: dict[str, Any] = {"input_variance": 0.5, "dropout": True, "seed": 3}
CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "propagate, ap1": lambda model: momentprop.propagate(model, _inputs(), method="ap1", record=True, **_GIVEN),
    "propagate, ap2": lambda model: momentprop.propagate(model, _inputs(), record=True, **_GIVEN, covariance=False),
    "propagate, sample": lambda model: momentprop.propagate(
        model, _inputs(), method="sample", samples=4, record=True, **_GIVEN
    ),
    "check": lambda model: momentprop.check(model, _inputs(), samples=4, **_GIVEN),
    "calibrate": lambda model: momentprop.calibrate(model, _inputs(), samples=4, **_GIVEN),
}
_WEIGHTS = (10, 10, 8, 1, 1)  # the last two take long


@contextlib.contextmanager
def tracing(strike: Callable[[int], None]) -> Iterator[Callable[[], int]]:
    """Call `strike` with the number of every line that runs; the function that it gives tells that number."""
    lines = 0

    def on_line(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            strike(lines)
        return on_line

    def on_call(frame: Any, *_: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(_TRACED) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield lambda: lines
    finally:
        sys.settrace(before)


@functools.cache
def lines_of(name: str) -> int:
    """Count the lines that a call runs, once everything that is made at a first call is there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        CALLS[name](a_model())
        with tracing(lambda _: None) as lines:
            CALLS[name](a_model())
    return lines()


def trial(random: Random, device: str = "cpu", name: str | None = None) -> Counter[str]:
    """Interrupt one call at one line and compare the state before and after."""
    name = name or random.choices(list(CALLS), _WEIGHTS)[0]
    total = lines_of(name)
    around = UsersOwn() if random.random() < 0.3 else contextlib.nullcontext()
    with around:
        return interrupted(name, random.randint(1, total), total)


class UsersOwn(TorchFunctionMode):
    """A mode that the user has entered, and that must survive."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def interrupted(name: str, moment: int, total: int = 0) -> Counter[str]:
    """Interrupt a call at a line; what it leaves behind is a failure."""
    model = a_model()
    struck = ""

    def strike(line: int) -> None:
        nonlocal struck
        if line == moment:
            frame = sys._getframe(2)
            struck = f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"
            raise KeyboardInterrupt

    before, ignored = state(model), sys.unraisablehook
    sys.unraisablehook = lambda _: None  # an interrupt inside of a finalizer is lost, as everywhere in Python
    raised = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inside = list(warnings.filters)
            try:
                with tracing(strike):
                    CALLS[name](model)
            except BaseException as error:
                raised = type(error).__name__
            filters = warnings.filters == inside
    finally:
        sys.unraisablehook = ignored
    left = differences(before, state(model)) + ([] if filters else ["warning filters"])
    if raised not in ("", "KeyboardInterrupt"):
        left.append(f"{raised} in place of the interrupt")
    _mend(before)
    assert not left, f"{name}, interrupted at line {moment} of {total} ({struck}), leaves behind: {', '.join(left)}"
    counts = Counter({"interrupts": 1, name: 1})
    if struck and not raised:
        counts["swallowed"] += 1
    return counts


def _mend(before: dict[str, Any]) -> None:
    """Put torch's state back, so that the next trial begins anew."""
    torch.set_grad_enabled(before["grad mode"])
    torch.set_rng_state(before["torch's generator"])
    torch.set_default_dtype(before["default dtype"])
    for _ in modes():
        torch._C._pop_torch_function_stack()
    for mode in before["torch function modes"]:
        torch._C._push_on_torch_function_stack(mode)
    while torch._C._functorch.peek_interpreter_stack() is not None:
        torch._C._functorch.pop_dynamic_layer_stack()
