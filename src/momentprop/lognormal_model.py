r"""The lognormal model, for functions that have no moments under a normal distribution.

A normal variable is negative with some probability, so its logarithm, square root and real powers have no moments.
Neither does its reciprocal. Their rules treat $X$ as lognormal with the same mean and variance. This changes the model;
it is not an approximation within it. For a coefficient of variation $\sigma/\mu$ of 0.1, the deviation of the result
differs by 1 to 3 % from that of a truncated normal variable, for 0.2 by 3 to 21 %.
"""

import warnings

from torch import Tensor

from momentprop.values.base import may_look_at

LARGEST_VARIATION = 0.2


class ModelChangeWarning(UserWarning):
    """A value was treated as lognormal where this differs visibly from normal."""


def warn_if_visible(op: str, mean: Tensor, variance: Tensor, *, positive: bool) -> None:
    r"""Warn if $\sigma > 0.2|\mu|$ somewhere or, for functions of a `positive` argument, if a mean is not positive.

    The check reads the data, so it is skipped while tracing and with `set_default_validate_args(False)`.
    """
    if not may_look_at(mean, None) or not may_look_at(variance, None):
        return
    if positive and bool(((mean < 0) | ((mean == 0) & (variance > 0))).any()):
        message = (
            f"{op!r} treats its input as lognormal, but some means are not positive, and the result there is NaN: make "
            "the input positive first, for example with `torch.nn.functional.softplus`"
        )
    elif bool((variance > (LARGEST_VARIATION * mean) ** 2).any()):
        message = (
            f"{op!r} treats its input as lognormal, but some deviations exceed {LARGEST_VARIATION} of the mean, where "
            "this changes the result visibly: compare with method='sample'"
        )
    else:
        return
    warnings.warn(message, ModelChangeWarning, stacklevel=2)
