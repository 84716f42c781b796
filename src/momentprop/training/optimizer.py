"""Makes the optimizer of a run from its settings, and converts its state to tensors and JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.errors import UserError
from momentprop.training.settings import Settings


def make_optimizer(model: nn.Module, settings: Settings, graphed: bool) -> torch.optim.Optimizer:
    """Make the optimizer; for a CUDA graph its state and its learning rate lie on the GPU."""
    parameters: Sequence[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise UserError("the model has no parameters to train")
    rate = torch.tensor(settings.learning_rate, device=parameters[0].device) if graphed else settings.learning_rate
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, fused=graphed or None)
    return torch.optim.Adam(parameters, rate, fused=graphed or None, capturable=graphed)


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of an optimizer's state by parameter and name, and the rest in a form that JSON takes."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, entry in entries.items():
            (tensors if isinstance(entry, Tensor) else rest)[f"{index}.{name}"] = entry
    return tensors, rest


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    """Restore a state; learning rates and other settings stay as they are."""
    state: dict[int, dict[str, Any]] = {}
    for key, entry in (*tensors.items(), *rest.items()):
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = entry
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
