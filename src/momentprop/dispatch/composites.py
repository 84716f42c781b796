r"""Python functions of torch that are opened: their body runs with values, and its operations have rules.

Most functions of `torch.nn.functional` hand a value over as a whole. To run their body instead silently assumes that
what they compute along the way is independent: `F.tanhshrink`, `x - tanh(x)`, would get a variance of 1.35 in place of
0.23. So only those are opened, by name, in which no value enters an operation twice as if it were independent:

* `multi_head_attention_forward` projects query, key and value, which are one random value in self-attention, by
  different weights; the independence of the three is the one the factorized approximation makes everywhere.

Of the others, `softmin`, `lp_pool`, `normalize`, the norms and the losses have rules of their own or lack one, and
`gumbel_softmax` draws noise, which is for `Sample` only.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from momentprop.torch_compat.opened import opened

_ALLOWED: tuple[Callable[..., Any], ...] = (F.multi_head_attention_forward,)

OPENED: dict[str, Callable[..., Any]] = {function.__name__: opened(function) for function in _ALLOWED}
"""The functions that are opened, by name."""
