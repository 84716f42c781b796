"""Kernels of rows, built for the processor or a GPU, hold what their formulas hold."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal
from momentprop.codegen import c_library, programs
from momentprop.codegen.identity import identity_of
from momentprop.kernels import rows
from momentprop.kernels.softmax import one_hot

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(c_library.compiler() is None, reason="no C compiler")),
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
TOKENS, FEATURES = 12, 8


@pytest.fixture(scope="module", autouse=True)
def _without_failures_of_other_files() -> None:
    programs.forget()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Let kernels be built for a device, in a folder of the test."""
    monkeypatch.setenv("MOMENTPROP_CACHE", str(tmp_path))
    before = programs.mode()
    programs.set_mode("wait")
    yield request.param
    programs.set_mode(before)


def layer_norm(x: Normal, *_: Normal) -> Normal:
    return F.layer_norm(x, x.shape[-1:])


def weighted_layer_norm(x: Normal, *_: Normal) -> Normal:
    weight, bias = (torch.linspace(*ends, FEATURES, device=x.device, dtype=x.dtype) for ends in ((0.5, 2.0), (-1, 1)))
    return F.layer_norm(x, (FEATURES,), weight, bias)


def rms_norm(x: Normal, *_: Normal) -> Normal:
    return F.rms_norm(x, x.shape[-1:])


def causal(query: Normal, key: Normal, value: Normal) -> Normal:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def certain_queries(query: Normal, key: Normal, value: Normal) -> Normal:
    return F.scaled_dot_product_attention(query.loc, key, value)


def written_out(query: Normal, key: Normal, value: Normal) -> Normal:
    return torch.softmax((query @ key.mT) * 0.3, -1) @ value


def softmax(x: Normal, *_: Normal) -> Normal:
    return torch.softmax(x, -1)


def logsumexp(x: Normal, *_: Normal) -> Normal:
    return torch.logsumexp(x, -1)


MAPS = [layer_norm, weighted_layer_norm, rms_norm, F.scaled_dot_product_attention, causal, certain_queries, written_out]


def given(device: str, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    means = [torch.randn(2, 3, TOKENS, FEATURES, generator=generator) for _ in range(3)]
    variances = [0.3 * torch.rand(2, 3, TOKENS, FEATURES, generator=generator) for _ in range(3)]
    return [x.to(device, dtype).requires_grad_() for x in (*means, *variances)]


def moments_and_slopes(function: Callable[..., Normal], parts: list[Tensor]) -> list[Tensor]:
    result = function(*(Normal(mean, variance) for mean, variance in zip(parts[:3], parts[3:], strict=True)))
    total = (result.loc.sin() + result.variance.cos()).sum()
    return [*result.parts, *torch.autograd.grad(total, parts, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("function", MAPS, ids=lambda function: function.__name__)
def test_moments_and_derivatives_are_those_of_the_formula(function: Callable[..., Normal], device: str) -> None:
    found = moments_and_slopes(function, given(device, torch.float32))
    assert not programs.failures()
    programs.set_mode("eager")
    wanted = moments_and_slopes(function, given("cpu", torch.float64))
    for ours, theirs in zip(found, wanted, strict=True):
        error = (ours.detach().cpu().double() - theirs).abs().max()
        assert error < 3e-6 * theirs.abs().max().clamp(min=1e-3)


def test_a_weight_and_a_bias_have_the_gradients_of_all_rows(device: str) -> None:
    def slopes() -> list[Tensor]:
        mean, _, _, variance, *_ = given(device, torch.float32)
        weight, bias = (torch.linspace(0.5, 2.0, FEATURES).to(device).requires_grad_() for _ in range(2))
        certain = torch.arange(TOKENS, device=device).unsqueeze(-1) % 3 == 0  # these rows are torch's own
        result = F.layer_norm(Normal(mean, torch.where(certain, 0.0, variance.detach())), (FEATURES,), weight, bias)
        total = (result.loc.sin() + result.variance.cos()).sum()
        return [*result.parts, *torch.autograd.grad(total, (mean, weight, bias))]

    found = slopes()
    assert not programs.failures()
    programs.set_mode("eager")
    for ours, theirs in zip(found, slopes(), strict=True):
        assert (ours - theirs).abs().max() < 3e-6 * theirs.abs().max()
    mean = given(device, torch.float32)[0]
    plain = F.layer_norm(mean, (FEATURES,), *(torch.linspace(0.5, 2.0, FEATURES).to(device) for _ in range(2)))
    assert torch.equal(found[0][:, :, ::3], plain[:, :, ::3])


@pytest.mark.full  # building takes half a minute
@pytest.mark.skipif(c_library.compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("function", [softmax, logsumexp])
def test_so_are_those_of_a_race_in_double_precision(function: Callable[..., Normal], device: str) -> None:
    """In single precision quadrature and formula cancel alike, but not to the same digits."""
    if device == "cuda":
        pytest.skip("float64 is not built for GPUs")
    found = moments_and_slopes(function, given(device, torch.float64))
    assert not programs.failures()
    programs.set_mode("eager")
    wanted = moments_and_slopes(function, given("cpu", torch.float64))
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


def test_second_derivatives_are_those_of_the_formula(device: str) -> None:
    def twice() -> Tensor:
        x, variance = (part.requires_grad_() for part in (torch.linspace(-1, 2, 6), torch.linspace(0.1, 1, 6)))
        result = F.layer_norm(Normal(x.to(device), variance.to(device)), (6,))
        (slope,) = torch.autograd.grad((result.loc**3).sum(), x, create_graph=True)
        return torch.autograd.grad((slope * slope).sum(), variance)[0]

    found = twice()
    programs.set_mode("eager")
    torch.testing.assert_close(found, twice(), rtol=1e-4, atol=1e-5)


def test_derivatives_of_four_orders_are_those_of_the_formula(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 5), (3, 1)
    parts = [torch.randn(s, generator=generator, dtype=torch.float64).to(device).requires_grad_() for s in shapes]

    def orders() -> list[Tensor]:
        found: list[Tensor] = list(rows.along_rows(_centred, *parts))
        every: list[Tensor] = []
        for _ in range(4):
            total = torch.stack([(y * y.sin()).sum() for y in found]).sum()
            found = list(torch.autograd.grad(total, parts, create_graph=True))
            every += found
        return every

    built = orders()
    programs.set_mode("eager")
    for ours, theirs in zip(built, orders(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_derivative_forwards_runs_a_program(device: str) -> None:
    runs = []

    def kernel(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        runs.append(1)
        return _centred(x, scale)

    x, scale = torch.randn(4, 6, device=device, requires_grad=True), torch.randn(4, 1, device=device)
    mean, _ = rows.along_rows(kernel, x, scale)
    cotangent = torch.zeros_like(mean, requires_grad=True)
    (pulled,) = torch.autograd.grad(mean, x, cotangent, create_graph=True)
    along = torch.randn_like(x)
    runs.clear()  # they were recorded
    (found,) = torch.autograd.grad(pulled, cotangent, along)
    assert not programs.failures()
    assert not runs
    wanted = torch.func.jvp(lambda x: _centred(x, scale)[0], (x.detach(),), (along,))[1]
    torch.testing.assert_close(found, wanted)


def _centred(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    y = scale * (x - x.mean(-1, keepdim=True))
    return torch.softmax(y, -1) * y, (y * y).tanh()


def test_second_derivatives_hold_an_input_that_was_computed_from_another(device: str) -> None:
    """The variance of scores may be computed from their mean, and that of a ReLU's input from its mean."""

    def twice(function: Callable[[Normal], Normal]) -> Tensor:
        x = torch.linspace(-1, 2, 6).requires_grad_()
        near = x.to(device)
        result = function(Normal(near, 0.1 + near * near))
        (slope,) = torch.autograd.grad((result.loc**3 + result.variance).sum(), x, create_graph=True)
        return torch.autograd.grad((slope * slope).sum(), x)[0]

    functions = [lambda value: F.layer_norm(value, (6,)), torch.relu]
    found = [twice(function) for function in functions]
    programs.set_mode("eager")
    for function, ours in zip(functions, found, strict=True):
        torch.testing.assert_close(ours, twice(function), rtol=1e-3, atol=1e-4)


def test_tensors_that_broadcast_and_results_for_a_whole_row(device: str) -> None:
    def kernel(x: Tensor, by_column: Tensor, by_row: Tensor) -> tuple[Tensor, Tensor]:
        shifted = x * by_column - by_row
        return shifted * x.mean(-1, keepdim=True), torch.softmax(shifted, -1).amax(-1, keepdim=True)

    x, by_column, by_row = (torch.randn(shape, device=device) for shape in ((5, 3, 7), (5, 1, 7), (5, 3, 1)))
    found = rows.along_rows(kernel, x.mT.contiguous().mT, by_column, by_row, results=(True, False))
    assert not programs.failures()
    for ours, theirs in zip(found, kernel(x, by_column, by_row), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_rows_that_repeat_are_read_again_and_their_gradients_are_summed(device: str) -> None:
    """As the numbers of channels do in a batch of images."""

    def kernel(x: Tensor, by_channel: Tensor, by_column: Tensor, by_head: Tensor) -> tuple[Tensor]:
        return ((x * by_channel + by_column).sin() * by_head,)

    shapes = ((2, 3, 4, 7), (3, 1, 1), (7,), (2, 1, 1, 7))
    inputs = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
    (found,), (wanted,) = rows.along_rows(kernel, *inputs, results=(True,)), kernel(*inputs)
    assert not programs.failures()
    torch.testing.assert_close(found, wanted)
    slopes = (torch.autograd.grad(result.cos().sum(), inputs) for result in (found, wanted))
    torch.testing.assert_close(*slopes)


def test_a_row_that_is_everywhere_the_same_fills_the_result(device: str) -> None:
    x = torch.randn(7, device=device).expand(2, 3, 7)
    (found,) = rows.along_rows(partial(_scaled, 3.5), x, results=(True,))
    torch.testing.assert_close(found, 3.5 * x)


def test_a_number_without_dimensions_is_left_to_the_formula(device: str) -> None:
    x, factor = torch.arange(6.0, device=device).view(2, 3), torch.tensor(2.0, device=device)
    (found,) = rows.along_rows(lambda x, factor: [x * factor], x, factor, results=(True,))
    assert torch.equal(found, 2 * x)
    (found,) = rows.along_rows(lambda x: [x + 1], factor, results=(True,))
    assert found.item() == 3


def test_the_first_of_equal_entries_is_chosen(device: str) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, -torch.inf], [2.0, 2.0, 2.0, 2.0]], device=device)
    (found,) = rows.along_rows(lambda x: [one_hot(x).to(x.dtype)], x, results=(True,))
    assert not programs.failures()
    assert found.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_a_kernel_is_built_for_some_lengths_only(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_MOST_LENGTHS", 1)
    kernel = partial(_scaled, 2.5)
    for length in (3, 4, 3):
        (found,) = rows.along_rows(kernel, torch.ones(1, length, device=device), results=(True,))
        assert found.tolist() == [[2.5] * length]
    assert {length for (known, *_), length in rows._KNOWN if known == identity_of(kernel)} == {3}


def _scaled(factor: float, x: Tensor) -> list[Tensor]:
    return [factor * x]
