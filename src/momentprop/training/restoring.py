"""Checks that a checkpoint fits the run that will continue from it, before anything is restored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.files import ContentError
from momentprop.training.checkpoint import Checkpoint, CheckpointError
from momentprop.training.generators import require_states
from momentprop.training.optimizer import require_state


def require_same_run(found: Checkpoint, path: Path, model: nn.Module, facts: Mapping[str, Any]) -> None:
    """Raise a `CheckpointError` if the checkpoint is for other examples, another objective or another model."""
    for name, value in facts.items():
        if found.state[name] != value:
            raise CheckpointError(
                f"`{path}` is of another run: its {name} are {found.state[name]}, but here they are {value}. Choose "
                "another folder"
            )
    require_weights(found.part("model."), path, model)


def require_weights(tensors: Mapping[str, Tensor], path: Path, model: nn.Module) -> None:
    """Raise an error if these are not the parameters and buffers of a model, or a parameter is NaN."""
    wanted = model.state_dict()
    if {name: x.shape for name, x in tensors.items()} != {name: x.shape for name, x in wanted.items()}:
        raise CheckpointError(
            f"`{path}` is of another model: names or shapes of tensors differ. Make the same model, or choose another "
            "file"
        )
    parameters = {name for name, _ in model.named_parameters()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() != wanted[name].is_floating_point() or tensor.is_complex():
            raise ContentError(f"{name!r} must be of type {wanted[name].dtype}, but is of type {tensor.dtype}")
        if name in parameters and tensor.isnan().any():
            raise ContentError(f"{name!r} holds NaN")


def require_fitting(found: Checkpoint, optimizer: torch.optim.Optimizer, sums: Tensor, steps: int) -> None:
    """Raise a `ContentError` if the rest of the checkpoint does not fit a run with this many steps per epoch."""
    if found.state["step"] >= steps:
        raise ContentError(f"its position is step {found.state['step']} of an epoch with {steps} steps")
    step, seen = found.state["step"], found.state.get("seen")
    if seen is not None and not (step <= seen and (seen > 0) == (step > 0)):
        raise ContentError(f"its position is step {step} after {seen} examples")
    mine = found.tensors.get("sums")
    if mine is None or mine.shape != sums.shape or mine.dtype != sums.dtype or not mine.isfinite().all():
        raise ContentError(f"its sums must be {len(sums)} finite numbers")
    require_state(optimizer, found.part("optimizer."), found.state["optimizer"])
    require_states(found.part("generator."))
