"""Wraps a model so that its inputs and outputs are tensors, for runtimes that do not know values."""

from typing import Any

from torch import Tensor, nn

from momentprop.torch_compat import pytrees as pytree
from momentprop.values import Normal, Value


class AsTensors(nn.Module):
    r"""A model as a function of two tensors, mean and variance; it returns the components of every output value.

    >>> import torch, momentprop
    >>> model = momentprop.AsTensors(torch.nn.ReLU())
    >>> model(torch.tensor([0.0, 3.0]), torch.ones(2))
    (tensor([0.3989, 3.0004]), tensor([0.3408, 0.9975]))

    Further arguments go to the model unchanged. `kind` is the type of the input value.
    """

    def __init__(self, model: nn.Module, kind: type[Normal] = Normal) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.training = model.training

    def forward(self, loc: Tensor, variance: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the model on a value with these components."""
        result = self.model(self.kind.of(loc, variance), *args, **kwargs)
        return pytree.tree_map(_components, result, is_leaf=lambda part: isinstance(part, Value))


def _components(part: Any) -> Any:
    return tuple(getattr(part, name) for name in part.components) if isinstance(part, Value) else part
