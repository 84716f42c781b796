"""Tensors made after a value are plain."""

import torch
from torch import Tensor

from momentprop import Normal


def _value(*sizes: int, seed: int) -> Normal:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(sizes, generator=generator, dtype=torch.float64)
    return Normal(mean, torch.rand(sizes, generator=generator, dtype=torch.float64))


def test_tensors_made_after_a_value_are_plain() -> None:
    x = _value(3, 4, seed=1)
    for made in (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 2.0), x.new_zeros(3, 4)):
        assert type(made) is Tensor
        assert made.shape == (3, 4)
        assert made.dtype == torch.float64
    assert torch.empty_like(x, dtype=torch.float32).dtype == torch.float32
    assert x.new_tensor([1.0]).dtype == torch.float64
