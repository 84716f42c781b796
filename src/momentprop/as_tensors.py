"""Wraps a model so that its inputs and outputs are tensors, for runtimes that do not know values."""

from typing import Any

from torch import Tensor, nn

from momentprop.torch_compat import pytrees as pytree
from momentprop.values import Normal, Value
from momentprop.values.conversion import is_value


class AsTensors(nn.Module):
    r"""A model as a function of two tensors, mean and variance; it returns the components of every output value.

    >>> import torch, momentprop
    >>> model = momentprop.AsTensors(torch.nn.ReLU())
    >>> model(torch.tensor([0.0, 3.0]), torch.ones(2))
    (tensor([0.3989, 3.0004]), tensor([0.3408, 0.9975]))

    Further arguments go to the model unchanged. `kind` is the type of the input value. Leave out the variance for a
    model that knows its own noise, such as one that `momentprop.calibrated` returns.
    """

    def __init__(self, model: nn.Module, kind: type[Normal] = Normal) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.training = model.training

    def forward(self, loc: Tensor, variance: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Run the model on a value with these components."""
        result = self.values(loc, variance, *args, **kwargs)
        return pytree.tree_map(components_of, result, is_leaf=is_value)

    def values(self, loc: Tensor, variance: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Return the values themselves, not their components."""
        if variance is not None:
            return self.model(self.kind.of(loc, variance), *args, **kwargs)
        result = self.model(loc, *args, **kwargs)
        if not any(is_value(part) for part in pytree.tree_leaves(result, is_leaf=is_value)):
            raise TypeError(
                f"the {type(self.model).__name__} gives no random output for a plain tensor: give the variance of "
                "the input too, as in `AsTensors(model)(loc, variance)` or `to_onnx(model, Normal(x, variance))`"
            )
        return result


def components_of(part: Any) -> Any:
    """Return the component tensors of a value; anything else as it is."""
    return tuple(getattr(part, name) for name in part.components) if isinstance(part, Value) else part
