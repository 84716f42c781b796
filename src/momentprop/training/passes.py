"""The forward pass of a model in training and in evaluation, by each of the three methods."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.calibration import Calibration
from momentprop.calibration.calibrated_module import Calibrated
from momentprop.normalization.pixel import evaluating
from momentprop.propagate import propagate
from momentprop.training.distributed import Ranks
from momentprop.training.losses import Objective
from momentprop.training.settings import Settings
from momentprop.training.training_examples import Examples
from momentprop.values import Mean, Normal, Value

_EVALUATED_AT_ONCE = 500


def training_pass(model: nn.Module, inputs: Tensor, settings: Settings, calibration: Calibration | None = None) -> Any:
    """The output of a model in training mode: a tensor, or by AP2 a value, with corrections if there are any."""
    noise = settings.input_variance
    if settings.method == "ap1":
        return _means(model(Mean(inputs)))
    if settings.method == "ap2":
        given = Normal.of(inputs, torch.full_like(inputs, noise)) if noise > 0 else inputs
        return _moments(model, given, settings, calibration)
    return model(inputs + noise**0.5 * torch.randn_like(inputs) if noise > 0 else inputs)


def evaluation_pass(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    settings: Settings,
    objective: Objective,
    calibration: Calibration | None = None,
) -> Tensor:
    """The figures of every example, from a model in evaluation mode; AP2 and draws let its dropout act."""
    if settings.evaluation == "ap1":
        return objective(in_full(model(inputs)), targets)
    given: dict[str, Any] = {"input_variance": settings.input_variance or None, "dropout": True}
    if settings.evaluation == "ap2":
        return objective(in_full(_moments(model, inputs, settings, calibration, **given)), targets)
    drawn = _Drawn(model, objective)
    estimate = propagate(drawn, inputs, method="sample", samples=settings.samples, seed=settings.seed, **given)
    return objective.of_draws(estimate, targets)


def _moments(
    model: nn.Module,
    given: Any,
    settings: Settings,
    calibration: Calibration | None,
    input_variance: float | None = None,
    dropout: bool = False,
) -> Any:
    """AP2, with the corrections of a calibration of these weights or, in the training, of some that they had before."""
    if calibration is None:
        return propagate(model, given, family=settings.family, input_variance=input_variance, dropout=dropout)  # type: ignore[arg-type]
    return Calibrated(model, calibration, input_variance, dropout)(given)  # whichever weights were calibrated


@torch.no_grad()
def evaluate(
    model: nn.Module,
    examples: Examples,
    settings: Settings,
    objective: Objective,
    ranks: Ranks,
    calibration: Calibration | None = None,
) -> dict[str, float]:
    """The averages of an objective over examples, which the processes share among them."""
    sums = torch.zeros(len(objective.names), dtype=torch.float64, device=ranks.device)
    mine = ranks.shard(torch.arange(len(examples), device=ranks.device))
    with evaluating(model), autocast(settings, ranks.device):
        for indices in mine.split(_EVALUATED_AT_ONCE):
            inputs, targets = examples.batch(indices)
            inputs, targets = converted(inputs, settings), converted(targets, settings)
            sums += evaluation_pass(model, inputs, targets, settings, objective, calibration).double().sum(1)
    averages = (ranks.sum(sums) / len(examples)).tolist()
    return dict(zip(objective.names, averages, strict=True))


class _Drawn(nn.Module):
    """The model with what the objective averages over draws at its end."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.training = False

    def forward(self, inputs: Any) -> Any:
        return self.objective.draw(in_full(self.model(inputs)))


def converted(tensor: Tensor, settings: Settings) -> Tensor:
    """Floating point numbers in the type of the run, and integers as they are."""
    return tensor.to(settings.torch_dtype) if tensor.is_floating_point() else tensor


def autocast(settings: Settings, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Half precision where it is safe, if the run has that."""
    return torch.autocast(device.type, torch.bfloat16) if settings.amp else contextlib.nullcontext()


def in_full(output: Any) -> Any:
    """The output with half-precision numbers as float32, for the sake of the loss."""
    if isinstance(output, tuple | list):
        return type(output)(in_full(part) for part in output)
    if output.dtype not in (torch.bfloat16, torch.float16):
        return output
    return output.each(Tensor.float) if isinstance(output, Value) else output.float()


def _means(output: Any) -> Any:
    if isinstance(output, tuple | list):
        return type(output)(_means(part) for part in output)
    return output.loc if isinstance(output, Mean) else output
