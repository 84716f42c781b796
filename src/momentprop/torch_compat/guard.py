"""Access to private parts of torch: if a name is gone, one warning says what is lost; the rest works."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch


class UnknownTorchWarning(UserWarning):
    """This version of torch lacks a private name that momentprop uses."""


def warn(piece: str, loses: str) -> None:
    """Warn which piece of torch is unknown and what the user loses."""
    warnings.warn(
        f"momentprop does not know `{piece}` of this torch ({torch.__version__}): {loses}",
        UnknownTorchWarning,
        stacklevel=3,
    )


def known(path: str, *, otherwise: Any, loses: str, parts: Sequence[str] = ()) -> Any:
    """Return the object of torch at a dotted path, such as `"torch.Tensor._version"`.

    If it is gone or lacks one of the `parts` that are used, warn and return `otherwise`.
    """
    found = _at(path)
    gone = [path] if found is None else [f"{path}.{part}" for part in parts if not hasattr(found, part)]
    if gone:
        warn(", ".join(gone), loses)
    return otherwise if gone else found


def _at(path: str) -> Any:
    try:
        return functools.reduce(getattr, path.split(".")[1:], torch)
    except (AttributeError, ImportError):
        return None


def patched(piece: str, patch: Callable[[], None], *, loses: str) -> None:
    """Apply a patch to a piece of torch, or warn if it does not fit.

    A patch first reads every name it needs and then writes, so that it applies as a whole or not at all.
    """
    try:
        patch()
    except (AttributeError, ImportError, KeyError, TypeError):
        warn(piece, loses)
