"""The function with one threshold."""

import torch

from momentprop.kernels.hinge import hinge


def test_the_variance_is_never_negative_where_the_tails_underflow():
    """A jump down far above the mean: the first term underflows before the last one does. The fuzzer found it."""
    mean, variance = torch.tensor([-4897.40576171875, -43666832.0]), torch.tensor([123885.4609375, 9803542822912.0])
    assert (hinge(mean[:1], variance[:1], -0.006378173828125, 0.0).variance >= 0).all()
    assert (hinge(mean[1:], variance[1:], -40.0, 0.001373291015625).variance >= 0).all()
