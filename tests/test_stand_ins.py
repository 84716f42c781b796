"""A plain tensor that a value is written into becomes a value, for one pass and in all its views."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Mean, Normal, Sample, propagate
from momentprop.randomness import REPLAYS
from tests.values.factors import factors_of

X = torch.tensor([1.0, -2.0, 0.5])


def _filled(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def _set(x: Tensor) -> Tensor:
    buffer = torch.zeros(2, 3)
    buffer[1] = x
    return buffer


def _copied(x: Tensor) -> Tensor:
    buffer = torch.zeros(2, 3)
    before = buffer.t()
    buffer.copy_(x)
    return before * 2.0


def _added_to(x: Tensor) -> Tensor:
    buffer = _filled(2, 3)
    buffer[0] += x
    buffer[:, 1] *= 2.0
    return buffer.flatten()


def _multiplied(x: Tensor) -> Tensor:
    buffer = _filled(2, 3)
    buffer *= x
    return buffer


def _placed(x: Tensor) -> Tensor:
    buffer = _filled(2, 3)
    buffer.index_copy_(0, torch.tensor([1]), x[None])
    buffer.masked_scatter_(torch.tensor([True, False, False]), x)
    buffer.scatter_(1, torch.tensor([[2], [2]]), x[:2, None])
    return buffer


def _into_out(x: Tensor) -> Tensor:
    buffer = torch.zeros(3)
    torch.mul(x, 3.0, out=buffer)
    return buffer + 1.0


def _joined(x: Tensor) -> Tensor:
    buffer = torch.zeros(3)
    buffer.add_(x)
    return torch.cat([buffer, torch.stack(list(buffer))])


def _reshaped(x: Tensor) -> Tensor:
    buffer = torch.zeros(3)
    buffer.copy_(x)
    buffer.unsqueeze_(0)
    assert buffer.shape == (1, 3)
    assert len(buffer) == 1
    return buffer.mT.data


def _chosen(x: Tensor) -> Tensor:
    return torch.zeros(3).where(torch.tensor([True, False, True]), x)


def _emptied(x: Tensor) -> Tensor:
    buffer = torch.zeros(2, 3)
    buffer.copy_(x)
    buffer.zero_()
    buffer[0].fill_(3.0)
    return buffer


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    function.__name__.strip("_"): function
    for function in (
        _set, _copied, _added_to, _multiplied, _placed, _into_out, _joined, _reshaped, _chosen, _emptied,
    )
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
def test_means_and_variances_are_those_of_the_linear_program(program: Callable[[Tensor], Tensor], method: Any) -> None:
    found = propagate(program, X, input_variance=0.25, method=method, samples=2000, seed=0, covariance=False)
    wanted = program(X)
    if method == "ap1":
        assert torch.equal(found.loc, wanted)
        return
    jacobian = torch.stack([program(X + direction) - wanted for direction in torch.eye(3)], -1)  # all are affine
    variance = 0.25 * jacobian.square().sum(-1)
    if method == "ap2":
        torch.testing.assert_close(found.loc, wanted)
        torch.testing.assert_close(found.variance, variance)
    else:
        assert ((found.loc - wanted).abs() <= 5 * found.loc_error + 1e-6).all()
        assert ((found.variance - variance).abs() <= 5 * found.variance_error + 1e-6).all()


class Remembers(nn.Module):
    """Writes what it sees into a buffer, and gives the relu of all it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(2, 3))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.seen[0] = self.linear(x)
        self.seen[1].copy_(x)
        return self.seen


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
def test_a_buffer_is_as_before_and_every_pass_starts_anew(method: Any) -> None:
    torch.manual_seed(0)
    model = Remembers().requires_grad_(False)
    first = propagate(model, X, input_variance=0.1, method=method, samples=10, seed=0, covariance=False)
    again = propagate(model, X, input_variance=0.1, method=method, samples=10, seed=0, covariance=False)
    assert torch.equal(first.loc, again.loc)
    assert first.shape == (2, 3)
    assert not model.seen.any()


def test_records_have_what_was_written() -> None:
    model = nn.Sequential(Remembers(), nn.ReLU()).requires_grad_(False)
    _, inside = propagate(model, X, input_variance=0.1, record=True, covariance=False)
    assert torch.equal(inside["0"].variance[1], torch.full((3,), 0.1))


def test_draws_are_still_made_at_once() -> None:
    calls = []

    def model(x: Tensor) -> Tensor:
        calls.append(1)
        made, given = torch.zeros_like(x), torch.zeros(2, 3)
        made.copy_(x)
        given[0] = made
        return given

    found = propagate(model, X, input_variance=1.0, method="sample", samples=1000, seed=0)
    assert len(calls) == 2 + REPLAYS
    assert (found.variance[0] - 1.0).abs().max() < 0.3
    assert not found.variance[1].any()


def test_gradients_go_through_what_was_written() -> None:
    weight = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(3, dtype=torch.float64, requires_grad=True)
    x = Normal(X.double(), variance)

    def written(x: Any) -> Any:
        h = weight * 2.0
        row = h[1]
        h[0] = x
        row.mul_(x)
        return h

    def stacked(x: Any) -> Any:
        return torch.stack([x, weight[1] * 2.0 * x])

    results = [propagate(model, x, covariance=False) for model in (written, stacked)]
    found, wanted = (torch.autograd.grad((y.loc + y.variance).sum(), (weight, variance)) for y in results)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_one_value_read_twice_is_one_value() -> None:
    def model(x: Tensor) -> Tensor:
        buffer = torch.zeros(3)
        buffer.copy_(x)
        return buffer - buffer, buffer * torch.sigmoid(buffer)  # type: ignore[return-value]

    none, gated = propagate(model, X, input_variance=0.5, covariance=False)
    assert not none.variance.any()
    torch.testing.assert_close(
        gated.variance, propagate(lambda x: x * torch.sigmoid(x), X, input_variance=0.5, covariance=False).variance
    )


@pytest.mark.parametrize("kind", [Mean, Normal, Sample])
def test_noise_in_place_makes_a_plain_tensor_random(kind: Any) -> None:
    def model(x: Tensor, plain: Tensor) -> Tensor:
        plain = plain * 1.0
        F.dropout(plain, 0.5, training=True, inplace=True)
        return plain * x

    torch.manual_seed(0)
    found = propagate(model, kind.certain(torch.ones(50)), torch.ones(50), covariance=False)
    if kind is Mean:
        assert torch.equal(found.loc, torch.ones(50))
    elif kind is Normal:
        assert torch.equal(found.variance, torch.ones(50))
    else:
        assert set(found.loc.tolist()) == {0.0, 2.0}


def test_what_cannot_become_a_value_is_refused() -> None:
    def into_integers(x: Tensor) -> Tensor:
        return torch.zeros(3, dtype=torch.int64).copy_(x)

    def reread(x: Tensor) -> Tensor:
        buffer = torch.zeros(3)
        bits = buffer.view(torch.int32)
        buffer.copy_(x)
        return bits + 1

    with pytest.raises(RuntimeError, match=r"in-place 'copy_' at top level .* into a tensor of torch.int64: make"):
        propagate(into_integers, X, input_variance=0.1, covariance=False)
    with pytest.raises(
        RuntimeError, match=r"read as torch.int32 at top level, but the value was written as torch.float32"
    ):
        propagate(reread, X, input_variance=0.1, covariance=False)
    with pytest.raises(NotImplementedError, match="a plain tensor cannot become a Factors"):
        propagate(lambda x: torch.zeros(3, dtype=torch.float64).copy_(x), factors_of(3), covariance=False)
    with pytest.raises(
        RuntimeError, match=r"'add' at top level would write a random value into a plain tensor: .*propag"
    ):
        torch.add(Normal(X, 0.1), 1.0, out=torch.zeros(3))


def test_elements_are_not_read_as_numbers() -> None:
    def model(x: Tensor) -> Any:
        buffer = torch.zeros(3)
        buffer.copy_(x)
        return buffer.tolist()

    with pytest.raises(NotImplementedError, match="'tolist' at top level: an element of the Normal has a mean"):
        propagate(model, X, input_variance=0.1, covariance=False)
    with pytest.raises(TypeError, match="control flow on a random Normal"):
        propagate(lambda x: bool(torch.zeros(1).copy_(x[:1])), X, input_variance=0.1, covariance=False)


def test_compiled_code_says_so() -> None:
    torch.compiler.reset()
    with pytest.raises(Exception, match="would write a random value into a plain tensor"):
        torch.compile(lambda x: propagate(_set, x, covariance=False), fullgraph=True, backend="eager")(Normal(X, 0.1))
