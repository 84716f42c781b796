"""Functions of torch that call others: those that are opened run their body."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Normal
from momentprop.dispatch.composites import OPENED, opened
from tests.rules.attention.inputs import seeded


def test_opened_functions_run_their_body() -> None:
    def body(x: Tensor) -> Tensor:
        return x

    assert set(OPENED) == {"multi_head_attention_forward"}
    assert opened(body)(3) == 3
    x = torch.randn(4, 2, 8, generator=seeded(0))
    layer = nn.MultiheadAttention(8, 2)
    arguments = (x, x, x, 8, 2, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0)
    more = (layer.out_proj.weight, layer.out_proj.bias)
    for found, expected in zip(
        OPENED["multi_head_attention_forward"](*arguments, *more),
        F.multi_head_attention_forward(*arguments, *more),
        strict=True,
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_to_itself_is_that_of_the_body(batch_first: bool, bias: bool) -> None:
    x = Normal(torch.randn(4, 3, 8, generator=seeded(0)), 0.1)
    layer = nn.MultiheadAttention(8, 2, bias=bias, batch_first=batch_first)
    whole, _ = layer(x, x, x, need_weights=False)
    tokens = x.transpose(0, 1) if batch_first else x
    parts = (layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0, layer.out_proj.weight)
    expected, _ = OPENED["multi_head_attention_forward"](
        tokens, tokens, tokens, 8, 2, *parts, layer.out_proj.bias, need_weights=False
    )
    expected = expected.transpose(0, 1) if batch_first else expected
    torch.testing.assert_close(whole.loc, expected.loc)
    torch.testing.assert_close(whole.variance, expected.variance)
