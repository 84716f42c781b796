"""The names of 0.1 that have moved: they still work, with a `DeprecationWarning` that says what to write."""

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

_MODULES = {  # an old module, and where its public names are now
    "momentprop.check.report": "momentprop.checking",
    "momentprop.experiments": "momentprop_experiments",
    "momentprop.experiments.attacks": "momentprop_experiments.attacks",
    "momentprop.experiments.kept": "momentprop_experiments.runs.trained_networks",
    "momentprop.experiments.networks": "momentprop_experiments.networks",
    "momentprop.export": "momentprop",
    "momentprop.model_change": "momentprop",
    "momentprop.monte_carlo": "momentprop.sampling",
    "momentprop.noises": "momentprop.noise",
    "momentprop.score_function": "momentprop.nn",
    "momentprop.values.spread": "momentprop.values",
}

_NAMES = {  # names that changed too, or left a module that stays
    "momentprop.check.report.Module": "momentprop.checking.ModuleAccuracy",
    "momentprop.check.report.Posterior": "momentprop.checking.PosteriorAccuracy",
    "momentprop.monte_carlo.Moments": "momentprop.sampling.RunningMoments",
    "momentprop.training.Config": "momentprop_experiments.Config",
    "momentprop.training.Result": "momentprop_experiments.Result",
    "momentprop.training.load_model": "momentprop_experiments.load_model",
    "momentprop.training.save_halved": "momentprop_experiments.save_halved",
    "momentprop.training.train": "momentprop_experiments.train",
    "momentprop.values.spread.Spread": "momentprop.values.Uncertain",
}


class _Renamed(ModuleType):
    """A module that answers for its old names."""

    def __getattr__(self, name: str) -> Any:
        old = f"{self.__name__}.{name}"
        if name.startswith("_") or (self.__name__ not in _MODULES and old not in _NAMES):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        new = _NAMES.get(old) or f"{_MODULES[self.__name__]}.{name}"
        module, _, now = new.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), now)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"`{old}` is now `{new}`, in a package of its own: run `pip install . ./experiments` in a clone"
            ) from error
        warnings.warn(f"`{old}` is now `{new}`: write that", DeprecationWarning, stacklevel=2)
        return found


def keep_modules() -> None:
    """Let the modules of 0.1 be imported."""
    for name in _MODULES:
        parent, _, child = name.rpartition(".")
        sys.modules[name] = old = _Renamed(name, f"The names of this module are in `{_MODULES[name]}` now.")
        if parent in sys.modules and child not in vars(sys.modules[parent]):
            setattr(sys.modules[parent], child, old)


def keep_names(module: str) -> None:
    """Let a module that stays answer for the names that have left it."""
    sys.modules[module].__class__ = _Renamed
