"""What users pass to a call: distributions and covariances instead of values, flags, keywords for the model."""

import difflib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from momentprop.torch_compat import pytrees as pytree
from momentprop.values import Joint, Normal
from momentprop.values.conversion import is_floating, is_value
from momentprop.values.given_distributions import is_correlated
from momentprop.values.given_noise import has_noise, nothing_to_make_random


def with_values(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return arguments with values instead of torch's distributions; one that is passed twice remains one.

    >>> import torch
    >>> with_values([torch.distributions.Laplace(torch.zeros(1), 1.0)], {})[0]
    (Normal(loc=tensor([0.]),
           variance=tensor([2.])),)
    """
    if not kwargs and all(type(x) is Tensor for x in args):
        return args, kwargs
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=is_value)
    made = {id(leaf): as_value(leaf) for leaf in leaves if isinstance(leaf, Distribution)}
    if not made:
        return args, kwargs
    return pytree.tree_unflatten([made.get(id(leaf), leaf) for leaf in leaves], structure)  # type: ignore[no-any-return]


def as_value(x: Any) -> Any:
    """Return a distribution as a value: a `Joint` if it has a covariance, otherwise a `Normal` with its moments.

    The `Normal` remembers the distribution, so `method="sample"` draws from it and not from a normal one.
    """
    if not isinstance(x, Distribution):
        return x
    if is_correlated(x):
        return Joint.from_distribution(x)
    value = Normal.from_distribution(x)
    value.law = x  # type: ignore[misc]
    return value


def with_covariance(
    args: Sequence[Any], kwargs: Mapping[str, Any], variance: Any, covariance: Tensor, batch_dim: int | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments with a `Joint` instead of the first floating-point tensor."""
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=is_value)
    if variance is not None:
        raise TypeError("both input_covariance and input_variance (or input_std) were given: give only one of them")
    if any(is_value(leaf) for leaf in leaves):
        raise TypeError(has_noise(leaves, "input_covariance"))
    first = next((i for i, leaf in enumerate(leaves) if is_floating(leaf)), None)
    if first is None:
        raise TypeError(nothing_to_make_random(leaves, "input_covariance"))
    dim = None if leaves[first].ndim == 1 else batch_dim
    leaves[first] = Joint.from_covariance(leaves[first], covariance, batch_dim=dim)
    return pytree.tree_unflatten(leaves, structure)  # type: ignore[no-any-return]


def require_flags(dropout: Any, covariance: Any) -> None:
    """Refuse a dropout rate, or any other value, where a flag is expected."""
    if not isinstance(dropout, bool):
        raise TypeError(
            f"`dropout` must be True or False, but is {dropout!r}: True turns on the model's own dropout, and every "
            "layer keeps its own rate"
        )
    if covariance is not None and not isinstance(covariance, bool):
        found = repr(covariance)
        if hasattr(covariance, "shape"):
            found = f"a {type(covariance).__name__}: give the covariance of the input as `input_covariance=`"
        raise TypeError(f"`covariance` must be True, False or None, but is {found}")


def require_model(model: Any) -> None:
    """Refuse a model that cannot be called, such as the input in its place."""
    if not callable(model):
        raise TypeError(
            f"the model must be a module or a function, but is a {type(model).__name__}: write "
            "`propagate(model, x, ...)`"
        )


def require_calibration(calibration: Any) -> None:
    """Refuse the path of a calibration, which is to be loaded first."""
    if isinstance(calibration, str | os.PathLike):
        raise TypeError(
            f"`calibration` must be a Calibration, but is a {type(calibration).__name__}: write "
            f"`momentprop.Calibration.load({os.fspath(calibration)!r})`"
        )


def refuse_unknown(model: Callable[..., Any], kwargs: Mapping[str, Any], caller: Callable[..., Any]) -> None:
    """Refuse keywords that neither the caller nor the model takes, and suggest the closest name."""
    taken = _keywords(model) if kwargs and not torch.compiler.is_compiling() else None
    if taken is None:
        return
    own = [name for name, each in inspect.signature(caller).parameters.items() if each.kind is each.KEYWORD_ONLY]
    for name in kwargs:
        if name not in taken:
            raise TypeError(
                f"neither `{caller.__name__}` nor the model takes the keyword {name!r}{_meant(name, [*own, *taken])}"
            )


def _keywords(model: Callable[..., Any]) -> list[str] | None:
    """Return the names of the keywords that a model takes, or None if it may take any."""
    try:
        parameters = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters.values()
    except (TypeError, ValueError):  # a function not written in Python
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]


def _meant(name: str, known: Sequence[str]) -> str:
    close = [each for each in known if name in each] or difflib.get_close_matches(name, known, 1)
    return f": did you mean `{close[0]}`?" if close else ""
