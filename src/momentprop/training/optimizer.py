"""Makes the optimizer of a run from its settings, and converts its state to tensors and JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.errors import UserError
from momentprop.files import ContentError
from momentprop.training.settings import Settings

_ADAM = {"step", "exp_avg", "exp_avg_sq"}


def make_optimizer(model: nn.Module, settings: Settings, graphed: bool) -> torch.optim.Optimizer:
    """Make the optimizer; for a CUDA graph, keep its state and learning rate on the GPU."""
    parameters: Sequence[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise UserError("the model has no parameters to train")
    rate = torch.tensor(settings.learning_rate, device=parameters[0].device) if graphed else settings.learning_rate
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, fused=graphed or None)
    return torch.optim.Adam(parameters, rate, fused=graphed or None, capturable=graphed)


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of an optimizer's state by parameter and name, and the rest in a form for JSON."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, entry in entries.items():
            (tensors if isinstance(entry, Tensor) else rest)[f"{index}.{name}"] = entry
    return tensors, rest


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    """Restore a state; learning rates and other settings stay as they are."""
    state = _by_parameter({**rest, **tensors})
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def require_state(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    """Raise a `ContentError` if a state is not one of this optimizer and its parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in _by_parameter({**rest, **tensors}).items():
        if not 0 <= index < len(parameters):
            raise ContentError(f"its optimizer has a parameter {index}, but the model has {len(parameters)}")
        if isinstance(optimizer, torch.optim.Adam) and set(entries) != _ADAM:
            raise ContentError(f"its optimizer must hold {', '.join(sorted(_ADAM))} of parameter {index}")
        for name, entry in entries.items():
            if isinstance(entry, Tensor) and entry.shape not in (torch.Size(), parameters[index].shape):
                raise ContentError(
                    f"'{name}' of parameter {index} in its optimizer has the shape {list(entry.shape)}, not "
                    f"{list(parameters[index].shape)}"
                )
            if isinstance(entry, Tensor) and (not entry.is_floating_point() or entry.isnan().any()):
                raise ContentError(
                    f"'{name}' of parameter {index} in its optimizer must hold numbers, none of them NaN"
                )


def _by_parameter(entries: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Arrange the entries of a state by the index of their parameter."""
    state: dict[int, dict[str, Any]] = {}
    for key, entry in entries.items():
        index, _, name = key.partition(".")
        if not index.isdecimal() or len(index) > 9:
            raise ContentError(f"its optimizer has an entry {key!r}, which belongs to no parameter")
        state.setdefault(int(index), {})[name] = entry
    return state
