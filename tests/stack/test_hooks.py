"""Forward hooks see values and may replace them."""

from typing import Any

import torch
from torch import nn

from momentprop import Normal
from tests.stack.inputs import a_value, an_mlp, assert_equal


def test_forward_hooks_see_values_and_may_replace_them() -> None:
    model, x, seen = an_mlp(), a_value(5, 6), []
    model[1].register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    model[5].register_forward_hook(lambda module, args, out: 2 * out)
    y = model(x)
    (given, result) = seen[0]
    assert type(given) is type(result) is Normal
    assert_equal(result, torch.relu(given))
    assert_equal(y, 2 * model[5].forward(model[:5](x)))


def test_forward_pre_hooks_may_turn_tensors_into_values() -> None:
    model, x = an_mlp(), a_value(5, 6)
    wanted = model(x)
    model.register_forward_pre_hook(lambda module, args: (Normal(args[0], x.variance),))
    assert_equal(model(x.loc), wanted)


def test_hooks_with_keywords_see_values() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any, *, scale: Any) -> Any:
            return x * scale

    model, seen = Scaled(), []
    model.register_forward_hook(lambda module, args, kwargs, out: seen.append(kwargs["scale"]), with_kwargs=True)
    model(a_value(2), scale=a_value(2))
    assert type(seen[0]) is Normal
