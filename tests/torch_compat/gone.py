"""A torch without one of its names, and modules of `momentprop.torch_compat` that are loaded under it."""

import functools
import importlib.util
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from momentprop import torch_compat
from momentprop.torch_compat import guard

ROOM = Path(torch_compat.__file__).parent


class _Without:
    """An object of torch that lacks what lies at a dotted path."""

    def __init__(self, of: Any, path: str) -> None:
        self._of, self._path = of, path

    def __getattr__(self, name: str) -> Any:
        first, _, rest = self._path.partition(".")
        if name == first and not rest:
            raise AttributeError(f"{name!r} is gone")
        found = getattr(self._of, name)
        return _Without(found, rest) if name == first else found


def without(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the name at a path such as `"torch.Tensor._version"` from `guard.known`."""
    functools.reduce(getattr, path.split(".")[1:], torch)  # it is there
    monkeypatch.setattr(guard, "torch", _Without(torch, path.partition(".")[2]))


def fresh(name: str) -> tuple[Any, list[str]]:
    """A module of the room, loaded anew under another name, and the warnings that it gave."""
    spec = importlib.util.spec_from_file_location(f"fresh_{name}", ROOM / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spec.loader.exec_module(module)
    assert all(issubclass(warning.category, torch_compat.UnknownTorchWarning) for warning in caught)
    return module, [str(warning.message) for warning in caught]


def loaded_without(path: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the room, loaded where a name of torch is gone; it warns of that once."""
    without(path, monkeypatch)
    module, said = fresh(name)
    assert len(said) == 1
    assert said[0].startswith(f"momentprop does not know `{path}` of this torch")
    return module
