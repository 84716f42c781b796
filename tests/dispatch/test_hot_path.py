"""An operation costs little beside its kernels: counted in Python frames and in operations of torch, not in seconds.

A frame takes a tenth of a microsecond or more. Who adds one to every operation raises a number here, and says why.
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from momentprop import Mean, Normal, calibrate, calibrated, propagate
from momentprop.codegen import programs
from momentprop.correlation import adjoint
from momentprop.kernels import rows
from tests.codegen.conftest import building, folder, needs_compiler  # noqa: F401 (fixtures)

_WEIGHT, _BIAS, _X = torch.randn(3, 3), torch.randn(3), torch.randn(2, 3)
_IMAGE, _FILTERS = torch.randn(1, 3, 5, 5), torch.randn(3, 3, 3, 3)
_STATISTICS = (torch.zeros(3), torch.ones(3))

# name: the operation, its operand, the most frames of Python, and the most operations of torch
OPERATIONS: dict[str, tuple[Callable[[Normal], Any], torch.Tensor, int, int]] = {
    "linear": (lambda x: F.linear(x, _WEIGHT, _BIAS), _X, 19, 5),
    "conv2d": (lambda x: F.conv2d(x, _FILTERS), _IMAGE, 19, 3),
    "batch_norm": (lambda x: F.batch_norm(x, *_STATISTICS), _IMAGE, 42, 6),
    "add": (lambda x: x + 1.0, _X, 38, 2),
    "flatten": (lambda x: x.flatten(1), _IMAGE, 30, 2),
}


def _frames(run: Callable[[], Any]) -> int:
    """Return how many Python functions are entered."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    run()  # first calls fill caches
    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count - 1  # but for `run` itself


class _Counter(TorchDispatchMode):
    """Counts the operations that torch starts."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def operations(run: Callable[[], Any]) -> int:
    """Return how many operations torch starts."""
    with _Counter() as counter:
        run()
    return counter.count


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_enters_few_frames_and_starts_few_operations(name: str) -> None:
    operation, operand, frames, started = OPERATIONS[name]
    x = Normal(operand, 0.1)
    with torch.no_grad():
        assert _frames(lambda: operation(x)) <= frames
        assert operations(lambda: operation(x)) <= started


@pytest.mark.parametrize(("name", "frames"), [("linear", 11), ("conv2d", 11), ("add", 13), ("flatten", 13)])
def test_a_mean_is_taken_through_an_operation_by_little_more_than_a_look_at_the_table(name: str, frames: int) -> None:
    operation, operand, *_ = OPERATIONS[name]
    x = Mean(operand)
    with torch.no_grad():
        assert _frames(lambda: operation(x)) <= frames
        assert operations(lambda: operation(x)) == operations(lambda: operation(operand))


def test_draws_in_one_batch_enter_few_frames_beside_those_of_the_model() -> None:
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(3, 3), nn.LeakyReLU())))

    def drawn() -> Any:
        return propagate(model, _X, method="sample", input_variance=0.1, samples=8)

    assert _frames(drawn) <= 395
    assert operations(drawn) <= 12 + 32  # of the model; for the noise and the moments


def test_propagate_with_independent_units_enters_few_frames_beside_the_direct_call() -> None:
    """A look into every module for noise and code of the user, copies of the arguments, the mode at each operation."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(3, 3), nn.LeakyReLU())))
    x = Normal(_X, 0.1)
    with torch.no_grad():
        direct = _frames(lambda: model(x))
        assert _frames(lambda: propagate(model, _X, input_variance=0.1, covariance=False)) <= direct + 179


@needs_compiler
def test_a_calibrated_pass_enters_and_starts_little_more_than_one_without_corrections(building: None) -> None:  # noqa: F811
    """At each corrected place, one operation for the result, and one C function that fills it."""
    programs.set_mode("wait")
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(3, 3), nn.LeakyReLU()))).eval()
    fitted = calibrate(model, torch.randn(8, 3), input_variance=0.1, samples=10, features="state")
    runs = calibrated(model, fitted)
    with torch.no_grad():

        def ap2() -> Any:
            return propagate(model, _X, input_variance=0.1, covariance=False)

        def corrected() -> Any:
            return runs(_X)

        assert _frames(corrected) <= _frames(ap2) + 150
        assert operations(corrected) <= operations(ap2) + 4 + 3  # of the level of noise


@needs_compiler
@pytest.mark.parametrize(("activation", "frames"), [(torch.relu, 32), (F.leaky_relu, 35)])
def test_so_does_a_built_kernel(activation: Callable[..., Any], frames: int, building: None) -> None:  # noqa: F811
    """An activation allocates two results, and one call of C fills them."""
    programs.set_mode("wait")
    x = Normal(_X, 0.1)
    with torch.no_grad():
        activation(x)
        assert _frames(lambda: activation(x)) <= frames
        assert operations(lambda: activation(x)) == 2


@needs_compiler
@pytest.mark.parametrize(("kept", "forward", "both"), [(False, 62, 296), (True, 67, 331)])
def test_attention_by_built_kernels_starts_few_operations(
    kept: bool,
    forward: int,
    both: int,
    building: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU keeps contractions. The backward pass runs the forward pass again; the mean has a program of its own."""
    programs.set_mode("wait")
    monkeypatch.setattr(rows, "_row_by_row", lambda weights: not kept)
    parts = [torch.rand(1, 2, 4, 4, requires_grad=True) for _ in range(6)]

    def attended() -> Normal:
        return F.scaled_dot_product_attention(*(Normal.of(*parts[i : i + 2]) for i in (0, 2, 4)))  # type: ignore[arg-type, return-value]

    def pulled_back() -> None:
        found = attended()
        torch.autograd.grad(found.loc.sum() + found.variance.sum(), parts)

    with torch.no_grad():
        attended()  # the first call fills caches
        assert _frames(attended) <= 293
        assert operations(attended) <= forward
    pulled_back()
    assert operations(pulled_back) <= both


@needs_compiler
@pytest.mark.parametrize(("together", "probes", "started"), [(False, 0, 479), (True, 0, 384), (True, 4, 794)])
def test_the_covariance_of_outputs_starts_few_operations(
    together: bool,
    probes: int,
    started: int,
    building: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU takes the backward passes for the three outputs and for the items together."""
    programs.set_mode("wait")
    monkeypatch.setattr(adjoint, "_prefers_batches", lambda outputs: together)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(3, 3), nn.LeakyReLU())))
    with torch.no_grad():
        propagate(model, _X, input_variance=0.1, probes=probes).covariance  # noqa: B018
        assert operations(lambda: propagate(model, _X, input_variance=0.1, probes=probes).covariance) <= started


@needs_compiler
def test_a_layer_of_attention_adds_few_operations(building: None) -> None:  # noqa: F811
    programs.set_mode("wait")
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), Normal(torch.randn(2, 4, 8), 0.1)
    with torch.no_grad():
        layer(x, x, x, need_weights=False)
        assert _frames(lambda: layer(x, x, x, need_weights=False)) <= 840
        assert operations(lambda: layer(x, x, x, need_weights=False)) <= 102
