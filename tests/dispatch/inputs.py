"""A value, and a comparison of two."""

import torch

from momentprop import Normal


def a_value(*shape, **kwargs):
    generator = torch.Generator().manual_seed(0)
    return Normal(torch.randn(*shape, generator=generator, **kwargs), torch.rand(*shape, generator=generator, **kwargs))


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    assert torch.equal(found.loc, wanted.loc)
    assert torch.equal(found.variance, wanted.variance)
