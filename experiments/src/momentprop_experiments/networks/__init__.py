"""All networks by name: the paper's and a deeper one as `nn.Sequential`s, a residual network, a vision transformer."""

from collections.abc import Callable

from torch import nn

from momentprop_experiments.networks.residual import resnet18
from momentprop_experiments.networks.sequential import ACTIVATIONS, NORMS, SEQUENTIAL, cifar, lenet, mlp, plain20
from momentprop_experiments.networks.transformer import vit

NETWORKS: dict[str, Callable[..., nn.Module]] = {**SEQUENTIAL, "resnet18": resnet18, "vit": vit}
"""The networks by name."""

WIDTHS = ("resnet18", "vit")
"""The networks whose width can be chosen."""

__all__ = ["ACTIVATIONS", "NORMS", "SEQUENTIAL", "cifar", "lenet", "mlp", "plain20", "resnet18", "vit"]
