"""What a training run is made of: every choice that can change its result, checked at the door and saved as JSON."""

import dataclasses
import difflib
import shlex
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args

import torch

from momentprop.errors import UserError
from momentprop.experiments.modern import NETWORKS
from momentprop.experiments.networks import ACTIVATIONS, NORMS
from momentprop.functional.posterior import PosteriorMethod
from momentprop.propagate import Family, Method
from momentprop.training.losses import LOSSES

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def _field(
    default: Any,
    text: str,
    *,
    choices: Sequence[str] | None = None,
    least: float | None = None,
    above: float | None = None,
) -> Any:
    """A field with its help, and the words it may be, or the least number, or one that it must be above."""
    return dataclasses.field(
        default=default, metadata={"help": text, "choices": choices, "least": least, "above": above}
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train, whatever the model and the data are; an impossible choice raises a `UserError` that says so."""

    method: str = _field(
        "ap2",
        "The training pass: ap1 (means), ap2 (means and variances) or sample (noise is drawn).",
        choices=get_args(Method),
    )
    evaluate: str = _field(
        "same",
        "The evaluation pass: as the training pass (same; ap1 if that is sample), or ap1, ap2 or sample.",
        choices=("same", *get_args(Method)),
    )
    softmax: str = _field(
        "simplified",
        "How ap2 takes the class posterior q of the loss -log q(y): simplified (as the paper trained), "
        "logistic, normal, centred, race (near exact) or fast.",
        choices=get_args(PosteriorMethod),
    )
    loss: str = _field(
        "posterior",
        "What ap2 minimizes: -log q(y) of the class posterior (posterior, as the paper), or the mean of -log softmax "
        "over the noise (expected), as training by sample does.",
        choices=tuple(LOSSES),
    )
    family: str = _field(
        "normal",
        "The values of ap2: normal (exact expectations), logistic, or fitted (the paper's own, fast for bernoulli).",
        choices=get_args(Family),
    )
    input_variance: float = _field(0.0, "The variance of the noise on the normalized inputs.", least=0)
    calibrate_every: int = _field(
        0, "For ap2: fit corrections of its variances at the start and after every so many epochs; 0: none.", least=0
    )
    samples: int = _field(16, "How many draws the evaluation by sample averages.", least=2)
    epochs: int = _field(20, "How often to go through the training examples.", least=1)
    batch_size: int = _field(128, "Examples a step, over all processes together.", least=1)
    learning_rate: float = _field(1e-3, "The learning rate of the first epoch.", above=0)
    decay: float = _field(0.96, "What the learning rate is multiplied by after every epoch.", above=0)
    optimizer: str = _field("adam", "The optimizer: adam or sgd.", choices=("adam", "sgd"))
    seed: int = _field(0, "The seed of the initial point, the order of the examples and the noise.", least=0)
    dtype: str = _field("float32", "The type of the numbers: float32 or float64.", choices=tuple(_DTYPES))
    amp: bool = _field(False, "Compute in bfloat16 where that is safe (autocast).")
    compile: bool = _field(False, "Compile the model with torch.compile.")
    graph: bool = _field(False, "On a GPU: record a step once as a CUDA graph, and replay it.")
    device: str = _field("auto", "Where to compute: auto (a GPU if there is one), cpu, cuda, ...")
    checkpoint_every: int = _field(
        500, "Also write a checkpoint after this many steps; 0: at ends of epochs only.", least=0
    )

    def __post_init__(self) -> None:
        kinds = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, kinds[field.name], getattr(self, field.name)))
        if self.seed >= 2**32:
            raise UserError(f"seed must be less than 2 to the power of 32, but is {self.seed}")
        if self.calibrate_every and self.method != "ap2":
            raise UserError(f"calibrate every is for the method 'ap2', but the method is {self.method!r}")
        if self.amp and self.dtype != "float32":
            raise UserError(f"amp computes in half precision, which makes no sense with dtype {self.dtype!r}")

    @property
    def evaluation(self) -> str:
        """The method of the evaluation pass."""
        if self.evaluate != "same":
            return self.evaluate
        return "ap1" if self.method == "sample" else self.method

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the numbers as torch has it."""
        return _DTYPES[self.dtype]

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The configuration with these fields; unknown ones are refused."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in fields:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise UserError(f"there is no setting {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
        return cls(**fields)


MAY_CHANGE = frozenset({"epochs", "device", "checkpoint_every"})
"""What may differ when a run is resumed: the other fields decide what its steps compute."""


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A whole run: a network, a data set, and how to train.

    >>> config = Config(network="lenet", data="digits", method="ap2", dropout=0.2)
    >>> config.learning_rate, config.evaluation
    (0.001, 'ap2')
    >>> config.command
    'momentprop train lenet --dropout 0.2'
    >>> Config(network="lenett")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    momentprop.errors.UserError: unknown network 'lenett': did you mean 'lenet'? choose one of mlp, lenet, ...
    """

    network: str = _field("lenet", "The network: mlp, lenet, cifar, plain20, resnet18 or vit.", choices=tuple(NETWORKS))
    data: str = _field("digits", "The data set: digits (embedded), mnist, fashion-mnist or cifar10.")
    test_data: str = _field("same", "The data set of the test images: same, or the name of another one.")
    validation: float = _field(0.1, "The part of the training images to validate with, chosen by the seed.", least=0)
    train_images: int = _field(0, "How many images to train with, chosen by the seed; 0: all.", least=0)
    activation: str = _field(
        "lrelu",
        "The activation: lrelu, bernoulli (random binary units), logistic (the transform), relu, ...",
        choices=tuple(ACTIVATIONS),
    )
    dropout: float = _field(0.0, "The probability of dropout after every activation.", least=0)
    norm: str = _field("none", "The normalization after every linear layer: none, bn or analytic.", choices=NORMS)
    init: str = _field(
        "torch",
        "The initial point: torch (its defaults), or then scaled to outputs of mean 0 and variance 1 by the statistics "
        "of a batch (bn) or of all training images (analytic).",
        choices=("torch", "bn", "analytic"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dropout", "validation"):
            if getattr(self, name) >= 1:
                raise UserError(f"{_option(name)} must be below 1, but is {getattr(self, name)}")

    @property
    def command(self) -> str:
        """The command that does this run; where the data are and what it writes to is left to its caller."""
        words = ["momentprop", "train", self.network]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "network" and value != field.default:
                words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return shlex.join(words)


def _option(name: str) -> str:
    return name.replace("_", " ")


def _checked(field: dataclasses.Field[Any], kind: Any, given: Any) -> Any:
    """The value of a field, or an error that says what is wrong with it."""
    name, choices = _option(field.name), field.metadata["choices"]
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
