"""All networks by name: the paper's and a deeper one as `nn.Sequential`s, a residual network, a vision transformer."""

from collections.abc import Callable

from torch import nn

from momentprop_experiments.networks.residual import resnet18 as resnet18
from momentprop_experiments.networks.sequential import ACTIVATIONS as ACTIVATIONS
from momentprop_experiments.networks.sequential import NORMS as NORMS
from momentprop_experiments.networks.sequential import SEQUENTIAL as SEQUENTIAL
from momentprop_experiments.networks.sequential import cifar as cifar
from momentprop_experiments.networks.sequential import lenet as lenet
from momentprop_experiments.networks.sequential import mlp as mlp
from momentprop_experiments.networks.sequential import plain20 as plain20
from momentprop_experiments.networks.transformer import vit as vit

NETWORKS: dict[str, Callable[..., nn.Module]] = {**SEQUENTIAL, "resnet18": resnet18, "vit": vit}
"""The networks by name."""

WIDTHS = ("resnet18", "vit")
"""The networks whose width can be chosen."""
