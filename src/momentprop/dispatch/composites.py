r"""Torch's Python functions that we open: their body runs with values, and its operations have rules.

Most functions of `torch.nn.functional` go to their rule as a whole. Running their body instead silently assumes that
intermediate results are independent: `F.tanhshrink`, `x - tanh(x)`, would get a variance of 1.35 instead of 0.23. So we
open, by name, only functions in which no value enters an operation twice as if it were independent:

* `multi_head_attention_forward` projects query, key and value, which are one random value in self-attention, by
  different weights; the factorized approximation assumes the independence of such results everywhere.

Of the others, `softmin`, `lp_pool`, `normalize`, the norms and the losses have their own rules or none, and
`gumbel_softmax` draws noise, which only a `Sample` allows.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from momentprop.torch_compat.opened import opened

_ALLOWED: tuple[Callable[..., Any], ...] = (F.multi_head_attention_forward,)

OPENED: dict[str, Callable[..., Any]] = {function.__name__: opened(function) for function in _ALLOWED}
"""The opened functions, by name."""
