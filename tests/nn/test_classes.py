"""Layers of classes: absorbed linear layers, maxout and softmax."""

import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Normal, functional
from momentprop.nn import (
    Maxout,
    Softmax,
)
from tests.nn.inputs import a_tensor, seeded

"""Layers whose moments are those of a difference, or a posterior, taken as something simpler."""


def test_the_absorbed_layer_is_trained_and_acts_as_before_on_tensors() -> None:
    linear = seeded(nn.Linear(4, 3))
    head = Softmax(linear=linear)
    assert [name for name, _ in head.named_parameters()] == ["linear.weight", "linear.bias"]
    torch.testing.assert_close(head(a_tensor()).logits, torch.log_softmax(linear(a_tensor()), -1))
    loss = F.nll_loss(head(Normal(a_tensor(), 0.5)), torch.tensor([0, 1, 2]))
    assert all(grad.abs().sum() > 0 for grad in torch.autograd.grad(loss, linear.parameters()))


def test_a_1x1_convolution_is_absorbed_as_the_linear_layer_it_is() -> None:
    convolution = seeded(nn.Conv2d(4, 3, 1))
    x = Normal(torch.randn(2, 4, 5, 6, generator=torch.Generator().manual_seed(0)), 0.5)
    found = Softmax("fast", linear=convolution)(x)
    assert found.shape == (2, 5, 6, 3)
    linear = nn.Linear(4, 3)
    linear.weight.data, linear.bias.data = convolution.weight.data.flatten(1), convolution.bias.data  # type: ignore[union-attr]
    torch.testing.assert_close(found.logits, Softmax("fast", linear=linear)(x.movedim(1, -1)).logits)
    torch.testing.assert_close(
        Softmax(linear=convolution)(x.loc).logits, torch.log_softmax(convolution(x.loc), 1).movedim(1, -1)
    )
    assert F.nll_loss(found, torch.zeros(2, 5, 6, dtype=torch.long)).ndim == 0


def test_maxout_and_softmax_are_the_functions() -> None:
    x = Normal(a_tensor(), 0.5)
    torch.testing.assert_close(Maxout(2)(x).variance, functional.maxout(x, 2).variance)
    assert Maxout(2)(a_tensor()).shape == (3, 2)
    for method in ("normal", "logistic", "simplified", "race", "fast"):
        torch.testing.assert_close(Softmax(method)(x).logits, functional.class_posterior(x, method=method).logits)  # type: ignore[arg-type]
    torch.testing.assert_close(Softmax("fast", dim=0)(x).logits, functional.class_posterior(x, 0, "fast").logits)
