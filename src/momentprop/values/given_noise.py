"""Noise as users give it: a variance, or a standard deviation."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

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
        raise TypeError(not_noise(names[1], stddev))
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


def not_noise(name: str, given: Any) -> str:
    """Say what was given as noise where a tensor or a number is expected."""
    is_array = type(given).__name__ == "ndarray"
    found = "numpy array: write `torch.as_tensor(a, dtype=x.dtype)`" if is_array else type(given).__name__
    return f"{name} must be a tensor or a number, but is a {found}"


def has_noise(leaves: Sequence[Any], noise: str) -> str:
    """Say which argument is a value, where a noise was given for a plain tensor."""
    kind = next(type(leaf).__name__ for leaf in leaves if isinstance(leaf, Value))
    return f"{noise} was given, but an argument is a {kind}, which has its own noise: leave out one of the two"


def nothing_to_make_random(leaves: Sequence[Any], noise: str) -> str:
    """Say what the arguments are, where none of them can have the noise that was given."""
    kinds = list(dict.fromkeys(f"a tensor of {x.dtype}" if isinstance(x, Tensor) else _kind(x) for x in leaves))
    if not kinds:
        return f"{noise} was given, but no argument for the model: write `propagate(model, x, ...)`"
    found = f"{'the argument is' if len(kinds) == 1 else 'the arguments are'} {' and '.join(kinds)}"
    return f"{noise} needs a floating-point tensor, but {found}: {_instead(leaves)}"


def _kind(given: Any) -> str:
    name = type(given).__name__
    return "a numpy array" if name == "ndarray" else f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def _instead(leaves: Sequence[Any]) -> str:
    """Say what to write instead of arguments that cannot have noise."""
    if any(isinstance(x, nn.Module) for x in leaves):
        return "write the model first, as in `propagate(model, x, ...)`"
    if any(isinstance(x, Tensor) for x in leaves):
        return "write `x.float()`, or, for the ids of tokens, give noise to their embeddings"
    return "write `torch.as_tensor(x, dtype=torch.float32)`"
