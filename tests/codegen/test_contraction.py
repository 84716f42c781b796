"""Programs of contractions give what their formulas give, for sizes that no vector and no block divides."""

import pytest
import torch

from momentprop.codegen import c_library, programs
from momentprop.codegen.contraction import contracted, of_factors, pullback_of_factors
from momentprop.kernels import rows
from momentprop.kernels.rows import along_contraction
from tests.codegen.conftest import needs_compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("folder")]
SIZES = [(1, 1, 1, 2), (9, 7, 3, 5), (8, 16, 4, 16), (19, 33, 5, 21), (65, 12, 8, 48)]  # queries, keys, left, right


@pytest.fixture(autouse=True)
def _at_once(building):
    programs.set_mode("wait")


def squared(x, shared, number):
    """Use the contraction, a row that all rows of a query share, and a number for each row."""
    return [(torch.square(x - number * shared) * shared.exp()).sum(-1, keepdim=True)]


def factors(queries, keys, left, right, dtype=torch.float64, lanes=(2, 3)):
    generator = torch.Generator().manual_seed(0)
    shapes = [(queries, keys), (keys, left), (keys, right), (queries, 1, right), (queries, left, 1)]
    return [torch.randn(*lanes, *s, generator=generator, dtype=dtype).mul_(0.3).requires_grad_() for s in shapes]


def with_slopes(function, given):
    result = function(*given)
    return [result, *torch.autograd.grad(result.sin().sum(), given)]


def plainly(*given):
    return of_factors(squared)(*given)[0]


def built(*given):
    return along_contraction(squared, *given)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_and_derivatives_are_those_of_the_formula(sizes):
    given = factors(*sizes)
    for ours, theirs in zip(with_slopes(built, given), with_slopes(plainly, given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    assert not programs.failures()


def test_single_precision_is_as_good_as_its_rounding():
    given = factors(19, 33, 5, 21)
    for ours, theirs in zip(
        with_slopes(built, [x.detach().float().requires_grad_() for x in given]),
        with_slopes(plainly, given),
        strict=True,
    ):
        assert (ours - theirs).abs().max() < 2e-5 * theirs.abs().max()


def test_many_threads_give_what_one_gives(monkeypatch):
    given = factors(40, 40, 5, 6, lanes=(7,))
    one = with_slopes(built, given)
    monkeypatch.setattr(c_library, "_threads", lambda elements: 3)
    for ours, theirs in zip(with_slopes(built, given), one, strict=True):
        assert torch.equal(ours, theirs)


def test_lanes_broadcast_and_may_be_missing():
    weights, left, right, shared, number = factors(4, 5, 3, 6)
    given = [weights[0], left, right[:, :1], shared[0, 0], number]
    torch.testing.assert_close(built(*given), plainly(*given))
    alone = [x[0, 0] for x in (weights, left, right, shared, number)]
    torch.testing.assert_close(built(*alone), plainly(*alone))


def test_second_derivatives_and_gradients_in_a_batch():
    given = factors(3, 4, 2, 5, lanes=(2,))

    def twice(function):
        (slope,) = torch.autograd.grad(function(*given).sin().sum(), given[0], create_graph=True)
        return torch.autograd.grad(slope.square().sum(), given)

    for ours, theirs in zip(twice(built), twice(plainly), strict=True):
        torch.testing.assert_close(ours, theirs)
    directions = torch.randn(6, *plainly(*given).shape, dtype=torch.float64, generator=torch.manual_seed(1))
    found, wanted = (
        torch.autograd.grad(function(*given), given, directions, is_grads_batched=True) for function in (built, plainly)
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_pullback_of_factors_adds_up_what_rows_share():
    given = factors(3, 4, 2, 5)
    grad = torch.randn(2, 3, 3, 2, 1, dtype=torch.float64, generator=torch.manual_seed(1))

    def backward(x, shared, number, grad):
        inputs = [x.requires_grad_(), shared.expand_as(x), number.expand_as(x)]
        result = squared(*inputs)[0]
        return torch.autograd.grad(result, inputs, grad)

    wanted = torch.autograd.grad(plainly(*given), given, grad)
    for ours, theirs in zip(pullback_of_factors(backward)(*given, grad), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_wrong_build_of_a_contraction_is_thrown_away(folder, monkeypatch):
    source_of = c_library.source_of
    wrong = lambda formulas: source_of(formulas).replace("gl[j * C + c] = sum", "gl[j * C + c] = 0")  # noqa: E731
    monkeypatch.setattr(c_library, "source_of", wrong)
    given = factors(3, 4, 2, 5, dtype=torch.float32)
    torch.testing.assert_close(built(*given), plainly(*given))
    assert "differs from its formula" in programs.failures().popitem()[1]


def test_a_program_does_not_keep_the_contraction():
    given = factors(64, 64, 32, 32, dtype=torch.float32, lanes=(2,))
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        built(*given)
    assert max(saved) < contracted(*given[:3]).numel() / 2


def test_a_contraction_that_is_kept_is_made_in_pieces(monkeypatch):
    given = [x.detach() for x in factors(4, 7, 5, 3)]
    given[3] = given[3][:1]  # shared by all lanes
    monkeypatch.setattr(rows, "may_be_built", lambda inputs: False)
    whole = built(*given)
    monkeypatch.setattr(rows, "_MOST_KEPT", 100)
    contractions = []
    monkeypatch.setattr(rows, "contracted", lambda *parts: contractions.append(parts) or contracted(*parts))
    assert torch.equal(built(*given), whole)
    assert len(contractions) == 2


@pytest.mark.parametrize("mode", ["wait", "eager"])
def test_a_contraction_of_a_few_lanes_at_a_time_has_the_same_derivatives(monkeypatch, mode):
    """What a GPU does: a program of rows, on contractions that are made again for the derivative."""
    given = factors(4, 7, 5, 3)
    wanted = with_slopes(plainly, given)
    monkeypatch.setattr(rows, "_row_by_row", lambda weights: False)
    monkeypatch.setattr(rows, "_MOST_KEPT", 50)
    programs.set_mode(mode)
    for ours, theirs in zip(with_slopes(built, given), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        built(*given)
    assert max(saved) < contracted(*given[:3]).numel()
    assert not programs.failures()
