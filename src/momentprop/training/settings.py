"""The settings of a training run: every choice that can change its result, checked when made, saved as JSON."""

import dataclasses
import difflib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args

import torch

from momentprop.errors import UserError
from momentprop.functional.posterior import PosteriorMethod
from momentprop.propagate import Family, Method
from momentprop.training.losses import LOSSES

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def setting(
    default: Any,
    text: str,
    *,
    choices: Sequence[str] | None = None,
    least: float | None = None,
    above: float | None = None,
) -> Any:
    """Declare a setting with its help text and its choices, its least value, or a bound that it must exceed."""
    return dataclasses.field(
        default=default, metadata={"help": text, "choices": choices, "least": least, "above": above}
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train, for any model and any data; an impossible choice raises a `UserError` that explains it."""

    method: str = setting(
        "ap2",
        "The training pass: ap1 (means), ap2 (means and variances) or sample (draws the noise).",
        choices=get_args(Method),
    )
    evaluate: str = setting(
        "same",
        "The evaluation pass: same (as the training pass, but ap1 if that is sample), ap1, ap2 or sample.",
        choices=("same", *get_args(Method)),
    )
    softmax: str = setting(
        "simplified",
        "How ap2 computes the class posterior q of the loss -log q(y): simplified (used in the paper), "
        "logistic, normal, centred, race (near exact) or fast.",
        choices=get_args(PosteriorMethod),
    )
    loss: str = setting(
        "posterior",
        "What ap2 minimizes: posterior (-log q(y) of the class posterior, as in the paper), or expected (the mean of "
        "-log softmax over the noise, as training by sample does).",
        choices=tuple(LOSSES),
    )
    family: str = setting(
        "normal",
        "The values of ap2: normal (exact expectations), logistic, or fitted (the paper's code, fast for bernoulli).",
        choices=get_args(Family),
    )
    input_variance: float = setting(0.0, "The variance of the noise on the normalized inputs.", least=0)
    calibrate_every: int = setting(
        0, "For ap2: fit corrections of its variances at the start and after every N epochs; 0: never.", least=0
    )
    samples: int = setting(16, "The number of draws that evaluation by sample averages.", least=2)
    epochs: int = setting(20, "The number of passes through the training examples.", least=1)
    batch_size: int = setting(128, "Examples per step, over all processes together.", least=1)
    learning_rate: float = setting(1e-3, "The learning rate of the first epoch.", above=0)
    decay: float = setting(0.96, "The factor that multiplies the learning rate after every epoch.", above=0)
    optimizer: str = setting("adam", "The optimizer: adam or sgd.", choices=("adam", "sgd"))
    seed: int = setting(0, "The seed of the initial weights, the order of the examples and the noise.", least=0)
    dtype: str = setting("float32", "The precision of the numbers: float32 or float64.", choices=tuple(_DTYPES))
    amp: bool = setting(False, "Compute in bfloat16 where that is safe (autocast).")
    compile: bool = setting(False, "Compile the model with torch.compile.")
    graph: bool = setting(False, "On a GPU: record a step as a CUDA graph once, and replay it.")
    device: str = setting("auto", "Where to compute: auto (a GPU if there is one), cpu, cuda, ...")
    checkpoint_every: int = setting(
        500, "Also write a checkpoint after every N steps; 0: only at the end of an epoch.", least=0
    )

    def __post_init__(self) -> None:
        kinds = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, kinds[field.name], getattr(self, field.name)))
        if self.seed >= 2**32:
            raise UserError(f"seed must be less than 2 to the power of 32, but is {self.seed}")
        if self.calibrate_every and self.method != "ap2":
            raise UserError(f"calibrate every works with the method 'ap2' only, but the method is {self.method!r}")
        if self.amp and self.dtype != "float32":
            raise UserError(f"amp works with dtype 'float32' only, but dtype is {self.dtype!r}: leave out one")

    @property
    def evaluation(self) -> str:
        """The method of the evaluation pass."""
        if self.evaluate != "same":
            return self.evaluate
        return "ap1" if self.method == "sample" else self.method

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch type of the numbers."""
        return _DTYPES[self.dtype]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields in a form for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Make the settings with these fields; an unknown field raises an error."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in fields:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise UserError(f"there is no setting {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
        return cls(**fields)


MAY_CHANGE = frozenset({"epochs", "device", "checkpoint_every"})
"""The fields that may change when a run is resumed; the others decide what its steps compute."""


def spoken(name: str) -> str:
    """Return the name of a setting for messages."""
    return name.replace("_", " ")


def _checked(field: dataclasses.Field[Any], kind: Any, given: Any) -> Any:
    """Return the value of a field, or raise an error that says what is wrong with it."""
    name, choices = spoken(field.name), field.metadata["choices"]
    least: float | None = field.metadata["least"]
    above: float | None = field.metadata["above"]
    if kind is float and isinstance(given, int) and not isinstance(given, bool):
        given = float(given)
    if type(given) is not kind:
        raise UserError(f"{name} must be of type {kind.__name__}, but is {given!r}")
    if choices is not None and given not in choices:
        near = difflib.get_close_matches(given, choices, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"unknown {name} {given!r}: {hint}choose one of {', '.join(choices)}")
    if least is not None and not least <= given < float("inf"):
        raise UserError(f"{name} must be at least {least}, but is {given}")
    if above is not None and not above < given < float("inf"):
        raise UserError(f"{name} must be more than {above}, but is {given}")
    return given
