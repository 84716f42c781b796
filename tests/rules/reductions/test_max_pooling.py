"""Max pooling of every shape: that windows are torch's, and what is kept for the backward pass."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal

SIZES = {1: (9,), 2: (7, 6), 3: (5, 4, 6)}
SETTINGS = [
    (kernel, stride, padding, dilation, ceil_mode)
    for kernel, stride, padding, dilation, ceil_mode in itertools.product(
        (1, 2, 3), (None, 1, 3), (0, 1), (1, 2), (False, True)
    )
    if 2 * padding <= kernel and (kernel - 1) * dilation < 4 + 2 * padding
]


def _value(*shape: int, seed: int = 0) -> Normal:
    generator = torch.Generator().manual_seed(seed)
    return Normal(torch.randn(shape, generator=generator), torch.rand(shape, generator=generator))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_windows_are_those_of_torch(dims: int) -> None:
    pool = getattr(F, f"max_pool{dims}d")
    x = _value(2, 3, *SIZES[dims])
    for kernel, stride, padding, dilation, ceil_mode in SETTINGS:
        setting = (kernel, stride, padding, dilation, ceil_mode)
        y = pool(Normal(x.loc, 0.0), *setting)
        assert torch.equal(y.loc, pool(x.loc, *setting)), setting
        assert not y.variance.any()
        z = pool(x, *setting)  # padding takes no part: neither infinite nor undefined moments
        assert torch.isfinite(z.loc).all()
        assert (z.variance > 0).all()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adaptive_windows_are_those_of_torch(dims: int) -> None:
    pool = getattr(F, f"adaptive_max_pool{dims}d")
    x = _value(2, 3, *SIZES[dims])
    sizes: list[Any] = [1, 2, 3, 4, *([(2, 3), (None, 4)] if dims == 2 else [])]
    for size in sizes:
        assert torch.equal(pool(Normal(x.loc, 0.0), size).loc, pool(x.loc, size)), size
        assert (pool(x, size).variance > 0).all()


def test_an_input_without_batch_dimension_is_pooled_alike() -> None:
    x = _value(1, 3, 7, 6)
    y, z = F.max_pool2d(x, 3, 2, 1), F.max_pool2d(Normal(x.loc[0], x.variance[0]), 3, 2, 1)
    torch.testing.assert_close((y.loc[0], y.variance[0]), (z.loc, z.variance))


def test_sizes_may_be_given_as_tuples() -> None:
    x = _value(1, 2, 7, 6)
    y, z = F.max_pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1)), F.max_pool2d(x, 3, 2, 1)
    assert torch.equal(y.variance, z.variance)
    assert torch.equal(F.max_pool2d(x, 3, []).loc, F.max_pool2d(x, 3).loc)


def test_large_windows_are_those_of_the_accurate_method() -> None:
    x = _value(1, 1, 6, 6)
    y = F.adaptive_max_pool2d(x, 1)
    draws = x.sample(200_000, generator=torch.Generator().manual_seed(0)).flatten(1).amax(1)
    assert abs(y.loc.item() - draws.mean().item()) < 5 * draws.std().item() / 200_000**0.5
    assert y.variance.item() == pytest.approx(draws.var().item(), rel=0.02)


@pytest.mark.parametrize("kernel", [2, 3, 5])
def test_the_backward_pass_keeps_the_input_only(kernel: int) -> None:
    mean, variance = (
        part.clone().requires_grad_() for part in (_value(2, 3, 20, 20).loc, _value(2, 3, 20, 20).variance)
    )
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        F.max_pool2d(Normal(mean, variance), kernel, 1)
    assert sum(kept.values()) <= 2 * mean.numel()


@pytest.mark.parametrize(("kernel", "padding"), [(2, 0), (3, 1), (5, 2)])
def test_gradients_of_pooling_are_right(kernel: int, padding: int) -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(1, 1, 6, 5, generator=generator, dtype=torch.float64).requires_grad_()
    variance = (torch.rand(1, 1, 6, 5, generator=generator, dtype=torch.float64) + 0.3).requires_grad_()

    def pool(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        y = F.max_pool2d(Normal(mean, variance), kernel, 2, padding)
        return y.loc, y.variance

    tolerance = 1e-6 if kernel < 5 else 1e-3  # a quadrature holds its window fixed
    assert torch.autograd.gradcheck(pool, (mean, variance), atol=tolerance, rtol=tolerance)
    batched = torch.func.vmap(lambda m, v: pool(m, v)[1])(mean, variance)
    torch.testing.assert_close(batched, pool(mean, variance)[1])


def test_sizes_that_torch_refuses_are_refused() -> None:
    x = _value(1, 1, 4, 4)
    with pytest.raises(ValueError, match="padding 2 is more than half of the window, which extends over 3 elements"):
        F.max_pool2d(x, 3, 1, 2)
    with pytest.raises(ValueError, match="a window of 7 elements does not fit into 4 elements with a padding of 0"):
        F.max_pool2d(x, 4, 1, 0, 2)


def test_shapes_and_strides_that_torch_refuses_are_refused() -> None:
    with pytest.raises(ValueError, match="max_pool1d takes channels and 1 more dimensions"):
        F.max_pool1d(Normal(torch.zeros(4), 1.0), 2)
    with pytest.raises(ValueError, match="adaptive_max_pool2d takes channels and 2 more dimensions"):
        F.adaptive_max_pool2d(Normal(torch.zeros(2, 2), 1.0), 2)
    with pytest.raises(ValueError, match="must be positive, but are 2, 0 and 1"):
        F.max_pool1d(Normal(torch.zeros(1, 4), 1.0), 2, stride=0)
