"""Noise as users give it: a variance, or a standard deviation."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from momentprop.values.base import Value, may_look_at


def the_variance(
    variance: Any, stddev: Any, names: tuple[str, str] = ("input_variance", "input_std"), validate: bool | None = None
) -> Any:
    """Return the given variance, or the square of the given standard deviation; `names` are the names of both.

    >>> the_variance(None, 0.5), the_variance(0.1, None)
    (0.25, 0.1)
    """
    if stddev is None:
        return variance
    if variance is not None:
        raise TypeError(f"both {names[0]} and {names[1]} were given: give only one of them")
    if isinstance(stddev, Value) or (not isinstance(stddev, Tensor) and bool(getattr(stddev, "shape", ()))):
        raise TypeError(f"{names[1]} must be a tensor or a number, but is a {type(stddev).__name__}")
    if isinstance(stddev, str):
        raise TypeError(f"{names[1]} must be a tensor or a number, but is a string")
    if isinstance(stddev, Sequence):
        return [the_variance(None, each, names, validate) for each in stddev]
    if not isinstance(stddev, Tensor):
        negative = stddev < 0
    else:
        negative = may_look_at(stddev, validate) and bool((stddev < 0).any())
    if negative:
        found = "has negative elements" if isinstance(stddev, Tensor) else f"is {stddev}"
        raise ValueError(f"{names[1]} must be non-negative, but {found}")
    return stddev * stddev


def has_noise(leaves: Sequence[Any], noise: str) -> str:
    """Say which argument is a value, where a noise was given for a plain tensor."""
    kind = next(type(leaf).__name__ for leaf in leaves if isinstance(leaf, Value))
    return f"{noise} was given, but an argument is a {kind}, which has its own noise: leave out one of the two"


def nothing_to_make_random(leaves: Sequence[Any], noise: str) -> str:
    """Say what the arguments are, where none of them can have the noise that was given."""
    kinds = [f"a tensor of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}" for x in leaves]
    if not kinds:
        return f"{noise} was given, but no argument for the model: write `propagate(model, x, ...)`"
    found = f"{'the argument is' if len(kinds) == 1 else 'the arguments are'} {' and '.join(kinds)}"
    return f"{noise} needs a floating-point tensor, but {found}: write `x.float()` or `torch.as_tensor(x)`"
