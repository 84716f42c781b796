"""Components of a value have the same strides, and memory of their own, where views are taken."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import momentprop
from momentprop import Normal
from momentprop.dispatch.memory import as_before, overlaps, settled
from momentprop.dispatch.rule_table import operation_named, table
from momentprop.torch_compat.tensors import shares_memory
from momentprop.values import Uncertain, Value
from tests.dispatch.inputs import a_value
from tests.examples import example
from tests.values.factors import factors_of


def test_components_that_are_alike_are_left_alone() -> None:
    assert settled([torch.zeros(2, 3), torch.ones(2, 3)]) is None


@pytest.mark.parametrize(
    "parts",
    [
        (torch.rand(2, 3), torch.rand(3, 2).t()),
        (torch.rand(3, 2).t(), torch.rand(2, 3)),
        (torch.rand(2, 3), torch.rand(()).expand(2, 3)),
        (torch.rand(2, 6)[:, ::2], torch.rand(2, 3)),
        (torch.rand(2, 6)[:, ::2],) * 2,
        (torch.rand(1, 3).expand(2, 3), torch.rand(2, 3)),
        (torch.rand(2, 3), torch.rand(3, 2).t(), torch.rand(4, 3, 2).mT),
        (torch.rand(()), torch.rand(4)),
    ],
)
def test_components_get_one_layout_and_keep_their_elements(parts: tuple[Tensor, ...]) -> None:
    found = settled(parts)
    assert found is not None
    stride = found[0].stride()
    for before, after in zip(parts, found, strict=True):
        assert torch.equal(before, after)
        assert after.stride()[after.ndim - len(stride) :] == stride
        assert not overlaps(after.shape, after.stride())
    assert not any(shares_memory(a, b) for a in found for b in found if a is not b)


def test_the_mean_keeps_its_memory() -> None:
    loc = torch.rand(2, 3)
    x = Normal(loc, loc)
    x.view(-1).mul_(2.0)
    assert x.loc is loc
    assert x.variance is not loc
    torch.testing.assert_close(x.variance, 2.0 * loc)


def test_settling_is_differentiable_and_vectorizes() -> None:
    def flat(mean: Tensor, variance: Tensor) -> Tensor:
        x = Normal.of(mean.t().contiguous().t(), variance)
        x.reshape(-1)[:2].mul_(3.0)
        return x.variance

    mean, variance = (torch.rand(5, 2, 3, dtype=torch.float64) for _ in range(2))
    found = torch.func.vmap(flat)(mean, variance)
    wanted = torch.stack([flat(m, v) for m, v in zip(mean, variance, strict=True)])
    assert torch.equal(found, wanted)
    assert torch.autograd.gradcheck(lambda v: flat(mean[0], v.clone()), (variance[0].requires_grad_(),))


def test_values_with_further_dimensions_are_settled_too() -> None:
    x = factors_of(2, 3, variance=0.2)
    x.loc = x.loc.t().contiguous().t()
    kept = x.each(torch.clone)
    flat = x.flatten()  # a copy, as that of a transposed tensor
    flat.mul_(2.0)
    for name in x.components:
        assert torch.equal(getattr(x, name), getattr(kept, name))


def test_an_operation_in_place_keeps_strides_and_type() -> None:
    loc = torch.rand(2, 6)[:, ::2]
    x = Normal(loc, 0.1)
    x += torch.ones(3, dtype=torch.float64)
    assert x.dtype == x.variance.dtype == torch.float32
    assert x.loc.stride() == loc.stride()
    flat = x.contiguous()
    flat.zero_()
    assert x.loc.all()


def test_what_expands_in_place_is_refused() -> None:
    x = a_value(3)
    with pytest.raises(RuntimeError, match=r"in-place 'add' .* shape \(2, 3\) does not fit a value of \(3,\)"):
        x += torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=r"'add' .* shape \(3,\) does not fit `out` of \(2,\)"):
        torch.add(x, 1.0, out=a_value(2))


@pytest.mark.parametrize(
    "call", [lambda x: x.contiguous(), lambda x: x.to(torch.float32), lambda x: x.float(), lambda x: x.requires_grad_()]
)
def test_what_returns_a_tensor_itself_returns_the_value_itself(call: Callable[[Any], Any]) -> None:
    x = a_value(2, 3)
    assert call(x) is x
    assert x.memory is None


def test_expressions_and_attention_are_followed_after_a_view() -> None:
    x = Normal(torch.randn(4, 3), torch.rand(3, 4).t())
    gate = x.sigmoid()
    apart = Normal(x.loc.clone(), x.variance.clone())
    _ = x.flatten()
    torch.testing.assert_close((x * gate).variance, (apart * apart.sigmoid()).variance)
    query, key = a_value(2, 5, 4), a_value(2, 5, 4)
    scores, others = query @ key.mT, query @ key.mT
    scores *= 0.5
    torch.testing.assert_close(scores.softmax(-1).variance, (others * 0.5).softmax(-1).variance)


@pytest.mark.parametrize("shape", ["resize_", "resize_as_"])
def test_resizing(shape: str) -> None:
    x, plain = a_value(2, 3), a_value(2, 3).loc.clone()
    given = (torch.zeros(3, 2),) if shape == "resize_as_" else (3, 2)
    getattr(plain, shape)(*given)
    assert torch.equal(getattr(x, shape)(*given).loc, plain)
    with pytest.raises(RuntimeError, match="would add elements without a value"):
        x.resize_(7)


def test_a_random_template_gives_a_plain_tensor_its_shape() -> None:
    x, template = torch.rand(2, 3), a_value(3, 2)
    wanted = x.clone().resize_(3, 2)
    assert x.resize_as_(template) is x
    assert torch.equal(x, wanted)

    def model(given: Any) -> Any:
        buffer = torch.arange(6.0)
        buffer.resize_as_(given)
        return given + buffer

    y = momentprop.propagate(model, template, covariance=False)
    assert torch.equal(y.loc, template.loc + torch.arange(6.0).reshape(3, 2))
    assert torch.equal(y.variance, template.variance)


def test_new_components_as_before() -> None:
    parts = [torch.rand(2, 3), torch.rand(2, 3)]
    assert as_before(torch.zeros(2, 3), parts) is parts
    found = as_before(torch.zeros(3, 2, dtype=torch.float64).t(), parts)
    assert [part.stride() for part in found] == [(1, 2), (1, 2)]
    assert {part.dtype for part in found} == {torch.float64}


LAYOUT_OF_THE_DEVICE = {"log_sigmoid", "logsigmoid", "log_softmax", "rrelu"}  # torch itself differs between CPU and GPU
GATHERED = {"sort"}  # as `gather` lays them out
NOT_TRANSPOSED = {"view", "_grouped_mm"}  # torch refuses
OURS = {"gumbel_argmax", "stochastic_binary"}  # functions that are not torch's
OTHER_LAYOUTS = LAYOUT_OF_THE_DEVICE | GATHERED | OURS
THROUGH_OTHERS = {"broadcast_tensors", "expand_as", "reshape_as", "view_as"}  # made of operations that give views
ROWS = [row for row in table() if issubclass(Normal, row.on) and example(row.op, row.on) is not None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.op}-{row.on.__name__}")
@pytest.mark.parametrize("transposed", [False, True])
def test_rules_give_memory_of_their_own_and_the_strides_of_torch(row: Any, transposed: bool) -> None:
    given = example(row.op, row.on)
    assert given is not None
    x = Normal.of(*(part.detach().float() for part in given.value(Normal).parts))
    if transposed and x.ndim > 1:
        dim = 1 if x.ndim > 3 else 0
        x = Normal.of(*(part.movedim(dim, -1).contiguous().movedim(-1, dim) for part in x.parts))
    try:
        plain = given.call(x.loc)
    except (AttributeError, TypeError, RuntimeError, ValueError):
        plain = None  # an example for values only
    if row.op in NOT_TRANSPOSED and transposed:
        return
    result = given.call(x)
    for found, wanted in zip(_several(result), _several(plain) if plain is not None else [None] * 9, strict=False):
        if not isinstance(found, Uncertain):
            continue
        assert not shares_memory(found.loc, found.variance)
        if found is not x and not operation_named(row.op).views and row.op not in THROUGH_OTHERS:
            assert not any(shares_memory(a, b) for a in found.parts for b in x.parts if a.numel())
        if (
            isinstance(wanted, Tensor)
            and wanted.shape == found.shape
            and row.op not in LAYOUT_OF_THE_DEVICE | OURS | GATHERED
        ):
            pairs = zip(found.loc.stride(), wanted.stride(), wanted.shape, strict=True)
            assert all(a == b or size == 1 for a, b, size in pairs)


def _several(result: Any) -> list[Value | Tensor | None]:
    return list(result) if isinstance(result, list | tuple) else [result]
