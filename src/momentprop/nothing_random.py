"""A warning for calls in which nothing is random: their variances are zero, which is rarely intended."""

import contextlib
import contextvars
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from momentprop.values import Joint, Uncertain, Value
from momentprop.values.base import may_look_at
from momentprop.values.structures import leaves_of

_EXPECTED = contextvars.ContextVar("expected", default=False)


class NothingRandomWarning(UserWarning):
    """Nothing is random in a call of `propagate`, so every variance is zero."""

    __module__ = "momentprop"  # where users find it


@contextlib.contextmanager
def nothing_may_be_random() -> Iterator[None]:
    """Expect calls in which nothing is random, as in training without noise."""
    token = _EXPECTED.set(True)
    try:
        yield
    finally:
        _EXPECTED.reset(token)


def warn_if_nothing_is_random(given: Any, found: Any, dropout: bool, has_random_weights: Callable[[], bool]) -> None:
    """Warn if neither arguments nor weights are values, and no result has a variance.

    Anything that cannot be inspected counts as random.
    """
    if torch.compiler.is_compiling() or _EXPECTED.get() or any(isinstance(x, Value) for x in leaves_of(given)):
        return
    results = [x for x in leaves_of(found) if isinstance(x, Uncertain)]
    if not results or any(_is_random(x) for x in results) or has_random_weights():
        return
    what = "the model has no dropout for `dropout=True` to turn on, and nothing else" if dropout else "nothing"
    warnings.warn(
        f"{what} is random in this call, so that every variance is zero: give `input_variance=` (or `input_std=`), a "
        "value such as `momentprop.Normal(x, variance)` in place of the input, or `dropout=True` for a model with "
        "dropout; if you want no noise, write `method='ap1'`",
        NothingRandomWarning,
        stacklevel=4,
    )


def _is_random(x: Uncertain) -> bool:
    if isinstance(x, Joint) and x.is_lazy:
        return True  # it depends on something that is
    return not may_look_at(x.variance, True) or bool((x.variance != 0).any())
