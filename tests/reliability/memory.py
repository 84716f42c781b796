"""Defects of memory: views, in-place operations, and values written into plain tensors."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Normal, propagate
from tests.reliability.rows import row


@row(4, "mean and variance of other strides, so that `flatten` copies one of them only", "deviation ratio 0.32")
def flatten_of_channels_last() -> str:
    """Of a tensor in channels-last order `flatten` is a copy, and what is written to it does not come back."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = Normal(torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last), 0.1)

    def model(x: Normal) -> Normal:
        h = convolution(x) + 0.5
        F.relu_(h.flatten(1))
        return h

    found, wanted = model(x), convolution(x) + 0.5
    assert torch.equal(found.loc, wanted.loc)
    ratio = (found.variance / wanted.variance).sqrt()
    assert torch.equal(ratio, torch.ones_like(ratio))
    return f"deviation ratio {ratio.min():.2f} to {ratio.max():.2f}"


@row(6, "the variance is the input tensor itself, then a view and an in-place operation", "0.751 for 1.083")
def variance_is_the_input() -> str:
    """Mean and variance get memory of their own before a view is taken."""
    p = torch.tensor([[1.0]])
    model = nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True))
    found = propagate(model, p.clone(), input_variance=p.clone(), covariance=False)
    shared = p.clone()
    y = propagate(model, shared, input_variance=shared, covariance=False)
    assert torch.equal(y.loc, found.loc)
    assert torch.equal(y.variance, found.variance)
    torch.testing.assert_close(y.loc.item(), 1.0833, atol=1e-4, rtol=0.0)
    return f"mean {y.loc.item():.3f}"


@row(19, "in-place shape methods", "RuntimeError; a view is permuted; the shape stays")
def shapes_in_place() -> str:
    """The value itself changes its shape, and views of it stay."""
    x = Normal(torch.arange(6.0).reshape(2, 3), 0.5)
    assert tuple(x.unsqueeze_(0).shape) == (1, 2, 3)
    view = x.view(-1)
    x.squeeze_()
    x.t_()
    assert tuple(x.shape) == (3, 2)
    assert view.loc.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    view.mul_(2.0)
    assert x.loc.tolist() == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]
    assert x.variance.unique().tolist() == [2.0]
    return f"shape {tuple(x.shape)}, view {tuple(view.shape)}"


@row(32, "a value written into a plain cache or buffer (Mamba, RWKV, Longformer)", "RuntimeError")
def written_into_a_plain_tensor() -> str:
    """The plain tensor becomes a value for the call, with all its views, and its own memory stays."""
    cache = torch.zeros(2, 3)

    def model(x: Tensor) -> Tensor:
        row = cache[1]
        cache[1] = x
        return row * 2.0

    y = propagate(model, torch.ones(3), input_variance=0.25, covariance=False)
    assert y.loc.tolist() == [2.0] * 3
    assert y.variance.tolist() == [1.0] * 3
    assert not cache.any()
    return f"variance {y.variance.tolist()}"


@row(4, "dropout in place on a plain tensor", "variance 0")
def dropout_in_place_on_a_plain_tensor() -> str:
    """The tensor becomes a value, wherever it is used afterwards."""

    def model(x: Tensor) -> Tensor:
        h = x * 1.0
        F.dropout(h, 0.5, True, inplace=True)
        return h

    y = propagate(model, torch.ones(3), covariance=False)
    assert y.variance.tolist() == [1.0] * 3
    return f"variance {y.variance.tolist()}"


@row(4, "`x.add_(x)` and `x.mul_(x.sigmoid())` after a view was taken: independent factors", "variance 2 for 4")
def in_place_with_itself() -> str:
    """What an in-place operation gives does not depend on whether a view was taken before."""
    x, viewed = (Normal(torch.tensor([0.5, -1.0]), 1.0) for _ in range(2))
    _ = viewed[:1]
    for value in (x, viewed):
        value.add_(value)
    assert torch.equal(x.variance, viewed.variance)
    assert x.variance.tolist() == [4.0, 4.0]
    for value in (x, viewed):
        value.mul_(value.sigmoid())
    torch.testing.assert_close(x.variance, viewed.variance)
    return f"variance {viewed.variance.tolist()}"


@row(4, "`torch.add(x, 1, out=tensor)` gave mean and variance one memory", "variance for mean")
def result_into_out() -> str:
    """A plain `out` becomes a value inside `propagate`, and is refused outside."""
    out = torch.zeros(2)
    y = propagate(
        lambda x: (torch.add(x, 1.0, out=out), out * 1.0)[1], torch.zeros(2), input_variance=0.5, covariance=False
    )
    assert y.loc.tolist() == [1.0, 1.0]
    assert y.variance.tolist() == [0.5, 0.5]
    into = Normal(torch.zeros(2), 0.0)
    torch.add(Normal(torch.zeros(2), 0.5), 1.0, out=into)
    assert into.loc.tolist() == [1.0, 1.0]
    assert into.variance.tolist() == [0.5, 0.5]
    return f"mean {y.loc.tolist()}, variance {y.variance.tolist()}"
