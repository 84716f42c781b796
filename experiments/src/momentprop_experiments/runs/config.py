"""The configuration of a run: a network and a data set by name, and the settings of the training."""

import dataclasses
import shlex
from dataclasses import dataclass

from momentprop.errors import UserError
from momentprop.training.settings import Settings, setting, spoken
from momentprop_experiments.networks import ACTIVATIONS, NETWORKS, NORMS, WIDTHS


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
    momentprop.errors.UserError: unknown network 'lenett': did you mean 'lenet'? choose one of mlp, deep-mlp, ...
    """

    network: str = setting(
        "lenet", "The network: mlp, deep-mlp, lenet, cifar, plain20, resnet18 or vit.", choices=tuple(NETWORKS)
    )
    data: str = setting("digits", "The data set: digits (embedded), mnist, fashion-mnist or cifar10.")
    test_data: str = setting("same", "The data set of the test images: same, or the name of another one.")
    validation: float = setting(0.1, "The share of the training images for validation, chosen by the seed.", least=0)
    train_images: int = setting(0, "The number of images to train with, chosen by the seed; 0: all.", least=0)
    activation: str = setting(
        "lrelu",
        "The activation: lrelu, bernoulli (random binary units), logistic (the transform), relu, ...",
        choices=tuple(ACTIVATIONS),
    )
    dropout: float = setting(0.0, "The probability of dropout after every activation.", least=0)
    norm: str = setting("none", "The normalization after every linear layer: none, bn or analytic.", choices=NORMS)
    init: str = setting(
        "torch",
        "The initial point: torch (its defaults), or scaled to outputs of mean 0 and variance 1 by the statistics of a "
        "batch (bn) or of all training images (analytic).",
        choices=("torch", "bn", "analytic"),
    )
    width: int = setting(0, "Channels of the first layers of resnet18, or the width of vit; 0: the usual one.", least=0)
    augment: bool = setting(False, "Mirror and shift the training images at random.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width and self.network not in WIDTHS:
            raise UserError(f"width is for the networks {' and '.join(WIDTHS)}, not for {self.network!r}: leave it out")
        for name in ("dropout", "validation"):
            if getattr(self, name) >= 1:
                raise UserError(f"{spoken(name)} must be below 1, but is {getattr(self, name)}")

    @property
    def command(self) -> str:
        """The command of this run, without the folders of the data and of the output."""
        words = ["momentprop", "train", self.network]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "network" and value != field.default:
                words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return shlex.join(words)
