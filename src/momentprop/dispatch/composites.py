r"""Python functions of torch that are opened: their body runs with values, and its operations have rules.

Most functions of `torch.nn.functional` hand a value over as a whole. To run their body instead silently assumes that
what they compute along the way is independent: `F.tanhshrink`, `x - tanh(x)`, would get a variance of 1.35 in place of
0.23. So only those are opened, by name, in which no value enters an operation twice as if it were independent:

* `multi_head_attention_forward` projects query, key and value, which are one random value in self-attention, by
  different weights; the independence of the three is the one the factorized approximation makes everywhere.

Of the others, `softmin`, `lp_pool`, `normalize`, the norms and the losses have rules of their own or lack one, and
`gumbel_softmax` draws noise, which is for `Sample` only.
"""

import types
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

_ALLOWED: tuple[Callable[..., Any], ...] = (F.multi_head_attention_forward,)


def _declines(*_: Any) -> bool:
    """What the copy is told when it asks whether an argument overrides it."""
    return False


def opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function of torch that does not hand values over but runs its body with them."""
    assert isinstance(function, types.FunctionType)
    hooks = dict.fromkeys((name for name in function.__globals__ if name.startswith("has_torch_function")), _declines)
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **hooks},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__ = function.__doc__
    return copy


OPENED: dict[str, Callable[..., Any]] = {function.__name__: opened(function) for function in _ALLOWED}
"""The functions that are opened, by name."""
