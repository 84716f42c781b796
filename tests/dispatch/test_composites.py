"""Functions of torch that call others: those that are opened run their body."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
