"""Values through `torch.utils.checkpoint`."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from momentprop import Normal
from tests.networks import ResidualBlock
from tests.stack.inputs import Around, a_value, an_mlp, assert_equal, gradients


def test_checkpointing_recomputes_exactly() -> None:
    model, x = an_mlp().train(), a_value(5, 6)
    x = Normal(x.loc.requires_grad_(), x.variance)
    found = checkpoint(model, x, use_reentrant=False)
    assert_equal(found, model(x))
    torch.testing.assert_close(gradients(found, model), gradients(model(x), model), rtol=0, atol=0)


def test_reentrant_checkpointing_is_refused() -> None:
    model, x = Around(lambda self, x: checkpoint(self.body, x, use_reentrant=True)), a_value(5, 6)
    with (
        pytest.warns(UserWarning, match="None of the inputs have requires_grad"),
        pytest.raises(RuntimeError, match=r"reentrant checkpointing at module 'body.0' \(Linear\) of Around"),
    ):
        model(Normal(x.loc.requires_grad_(), x.variance))


def test_a_checkpointed_residual_block_keeps_input_and_statistics() -> None:
    torch.manual_seed(0)
    block, x = ResidualBlock(3).double().eval(), a_value(2, 3, 5, 5)
    given = x.loc.clone()
    assert_equal(checkpoint(block, x, use_reentrant=False), block(x))
    assert torch.equal(x.loc, given)
