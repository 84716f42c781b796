"""Linear maps, against the square of their Jacobian."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Normal

torch.manual_seed(0)
WEIGHT = torch.randn(4, 3, 3, 3, dtype=torch.float64)
BIAS = torch.randn(4, dtype=torch.float64)
MASK = torch.randn(2, 4, 6, 5) > 0
PLAIN = torch.randn(2, 4, 6, 5, dtype=torch.float64)
ROWS = torch.randn(5, 7, dtype=torch.float64)

# name -> (a map that is affine in a tensor of shape (2, 4, 6, 5), written as users write it)
AFFINE: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: F.linear(x, ROWS.T, torch.ones(7, dtype=torch.float64)),
    "linear_without_bias": lambda x: F.linear(x, ROWS.T),
    "conv1d": lambda x: F.conv1d(x[0], WEIGHT[..., 0, 1:][:, :2].reshape(4, 2, 2).repeat(1, 3, 1), BIAS, padding=1),
    "conv2d": lambda x: F.conv2d(x[:, :3], WEIGHT, BIAS, stride=2, padding=1, dilation=1),
    "conv2d_groups": lambda x: F.conv2d(x, WEIGHT[:, :2], BIAS, padding="same", groups=2),
    "conv3d": lambda x: F.conv3d(x[:, None, :, :4], WEIGHT[:2, :1, None].expand(2, 1, 2, 3, 3), padding=1),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x[0], torch.ones(6, 2, 3, dtype=torch.float64), stride=2),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, WEIGHT[:, :2], None, 2, 1, 1),
    "conv_transpose3d": lambda x: F.conv_transpose3d(x[:1, None, :2], WEIGHT[:1, :2, None], stride=2),
    "conv_module": lambda x: nn.Conv2d(4, 2, 3, padding=1, dtype=torch.float64)(x),
    "batch_norm": lambda x: F.batch_norm(x, BIAS, BIAS.exp(), BIAS, BIAS, eps=1e-3),
    "batch_norm_without_affine": lambda x: F.batch_norm(x, BIAS, BIAS.exp()),
    "avg_pool1d": lambda x: F.avg_pool1d(x[0], 3, 2, 1),
    "avg_pool1d_ceil": lambda x: F.avg_pool1d(x[0], 2, 2, ceil_mode=True),
    "avg_pool2d": lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0)),
    "avg_pool2d_without_pad": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool2d_ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_pool2d_ceil_without_pad": lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
    "avg_pool2d_override": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2, 1, 1),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[0], 3),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (4, 2)),
    "adaptive_avg_pool2d_global": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_avg_pool2d_none": lambda x: F.adaptive_avg_pool2d(x, (None, 2)),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (3, 4, 2)),
    "global_mean": lambda x: x.mean((2, 3)),
    "mean_of_all": lambda x: x.mean(),
    "mean_keepdim": lambda x: torch.mean(x, 1, keepdim=True),
    "sum": lambda x: x.sum(-1),
    "sum_of_all": lambda x: torch.sum(x),
    "cumsum": lambda x: x.cumsum(2),
    "add_plain": lambda x: x + PLAIN,
    "add_broadcast": lambda x: x[:, :1] + PLAIN,
    "add_alpha": lambda x: torch.add(PLAIN, x, alpha=3),
    "add_number": lambda x: 2 + x,
    "add_itself": lambda x: x + x,
    "sub_number": lambda x: 1 - x,
    "sub_itself": lambda x: x - x,
    "sub_alpha": lambda x: torch.sub(x, PLAIN, alpha=0.5),
    "neg": lambda x: -x,
    "scale": lambda x: 3.0 * x,
    "scale_plain": lambda x: x * PLAIN,
    "divide": lambda x: x / PLAIN,
    "divide_number": lambda x: x / 4,
    "matmul": lambda x: x @ ROWS,
    "matmul_left": lambda x: ROWS.T @ x.mT,
    "mm": lambda x: torch.mm(x[0, 0], ROWS),
    "bmm": lambda x: torch.bmm(x[0], ROWS.expand(4, 5, 7)),
    "addmm": lambda x: torch.addmm(PLAIN[0, 0], x[0, 0], ROWS[:, :5], beta=2, alpha=3),
    "baddbmm": lambda x: torch.baddbmm(PLAIN[0], x[0], ROWS[:, :5].expand(4, 5, 5), alpha=0.5),
    "view": lambda x: x.view(2, -1),
    "reshape": lambda x: x.reshape(8, 30),
    "flatten": lambda x: torch.flatten(x, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "transpose": lambda x: x.transpose(1, 2),
    "swapaxes": lambda x: x.swapaxes(0, 3),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "movedim": lambda x: torch.movedim(x, 1, -1),
    "t": lambda x: x[0, 0].t(),
    "T": lambda x: x[0, 0].T,
    "squeeze": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(2),
    "expand": lambda x: x[:, :1].expand(2, 3, 6, 5),
    "broadcast_to": lambda x: x[:, :1].broadcast_to(2, 3, 6, 5),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "tile": lambda x: x.tile(2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: torch.split(x, [1, 3], 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "iterate": lambda x: list(x)[1],
    "select": lambda x: x.select(2, 3),
    "narrow": lambda x: x.narrow(3, 1, 2),
    "index_slice": lambda x: x[:, 1, ..., ::2],
    "index_list": lambda x: x[:, [0, 2]],
    "index_mask": lambda x: x[MASK],
    "masked_select": lambda x: x.masked_select(MASK),
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 0])),
    "gather": lambda x: x.gather(1, torch.zeros(2, 1, 6, 5, dtype=torch.int64)),
    "take_along_dim": lambda x: x.take_along_dim(torch.ones(2, 1, 6, 5, dtype=torch.int64), 1),
    "roll": lambda x: x.roll(2, 2),
    "flip": lambda x: x.flip(3),
    "rot90": lambda x: torch.rot90(x, 1, (2, 3)),
    "tril": lambda x: x.tril(),
    "diagonal": lambda x: x.diagonal(0, 2, 3),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "unfold_columns": lambda x: F.unfold(x, (3, 2), padding=1),
    "cat": lambda x: torch.cat([x, PLAIN], 1),
    "cat_tuple": lambda x: torch.cat((PLAIN, x), 1),
    "stack": lambda x: torch.stack([PLAIN, x], 1),
    "pad_constant": lambda x: F.pad(x, (1, 2), value=3.0),
    "pad_reflect": lambda x: F.pad(x, (1, 2, 1, 0), mode="reflect"),
    "pad_replicate": lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"),
    "pad_circular": lambda x: F.pad(x, (1, 2, 1, 0), mode="circular"),
    "masked_fill": lambda x: x.masked_fill(MASK, 7.0),
    "where": lambda x: torch.where(MASK, x, PLAIN),
    "where_number": lambda x: torch.where(MASK, 0.0, x),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :, :4], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "contiguous": lambda x: x.mT.contiguous(),
    "clone": lambda x: x.clone(),
}


def _value() -> Normal:
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(2, 4, 6, 5, generator=generator, dtype=torch.float64)
    return Normal(loc, torch.rand(2, 4, 6, 5, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("name", AFFINE)
def test_affine_maps_square_their_jacobian_for_the_variance(name: str) -> None:
    torch.manual_seed(2)
    x, function = _value(), AFFINE[name]
    state = torch.get_rng_state()
    y = function(x)
    torch.set_rng_state(state)
    plain = function(x.loc)
    torch.set_rng_state(state)
    jacobian = torch.autograd.functional.jacobian(function, x.loc).flatten(plain.ndim)
    assert type(y) is Normal
    assert y.shape == y.variance.shape == plain.shape
    assert torch.equal(y.loc, plain)
    torch.testing.assert_close(y.variance, (jacobian**2) @ x.variance.flatten(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "name", ["conv2d", "avg_pool2d_ceil", "batch_norm", "add_broadcast", "cat", "addmm", "mean_keepdim"]
)
def test_affine_maps_compile_to_the_same_values(name: str) -> None:
    torch.compiler.reset()
    x, function = _value(), AFFINE[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    eager = function(x)
    torch.testing.assert_close(compiled.loc, eager.loc)
    torch.testing.assert_close(compiled.variance, eager.variance)


def test_only_views_share_memory_with_their_inputs() -> None:
    x = Normal(torch.zeros(3), 1.0)
    y = x + 1
    y.view(3).mul_(0.0)
    assert x.variance.tolist() == [1, 1, 1]
    assert y.variance.tolist() == [0, 0, 0]


def _grads(function: Callable[[Any], Any], x: Normal) -> list[Tensor]:
    leaves = [x.loc.clone().requires_grad_(), x.variance.clone().requires_grad_()]
    y = function(Normal(*leaves))
    return list(torch.autograd.grad(y.loc.sum() + y.variance.square().sum(), leaves))


def test_gradients_flow_through_means_and_variances() -> None:
    by_loc, by_variance = _grads(lambda x: F.conv2d(x[:, :3], WEIGHT), _value())
    assert by_loc.abs().sum() > 0
    assert by_variance.abs().sum() > 0
