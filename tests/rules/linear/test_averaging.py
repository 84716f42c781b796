"""Batch normalization in training: the mixture over the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Normal


def _value() -> Normal:
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(2, 4, 6, 5, generator=generator, dtype=torch.float64)
    return Normal(loc, torch.rand(2, 4, 6, 5, generator=generator, dtype=torch.float64))


def test_batch_norm_in_training_standardizes_and_tracks_the_mixture() -> None:
    x = _value()
    layer = nn.BatchNorm2d(4, affine=False, dtype=torch.float64).train()
    y = layer(x)
    dims = [0, 2, 3]
    total = y.loc.var(dims, unbiased=False) + y.variance.mean(dims)
    torch.testing.assert_close(y.loc.mean(dims), torch.zeros(4, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(total, torch.ones(4, dtype=torch.float64), atol=1e-4, rtol=0)
    mixture = x.loc.var(dims, unbiased=False) + x.variance.mean(dims)
    torch.testing.assert_close(layer.running_mean, 0.1 * x.loc.mean(dims))
    torch.testing.assert_close(layer.running_var, 0.9 + 0.1 * mixture * 60 / 59)


def test_batch_norm_of_a_certain_value_in_training_is_the_plain_one() -> None:
    x = _value()
    plain, ours = nn.BatchNorm2d(4, dtype=torch.float64), nn.BatchNorm2d(4, dtype=torch.float64)
    y = ours(Normal(x.loc, 0.0))
    torch.testing.assert_close(y.loc, plain(x.loc))
    torch.testing.assert_close(ours.running_var, plain.running_var)


def test_batch_norm_in_training_has_right_gradients() -> None:
    generator = torch.Generator().manual_seed(4)
    leaves = [torch.rand(3, 2, 2, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    affine = [torch.rand(2, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]

    def moments(mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        y = F.batch_norm(Normal(mean, variance), None, None, weight, bias, training=True)
        return y.loc, y.variance

    assert torch.autograd.gradcheck(moments, (*leaves, *affine))
