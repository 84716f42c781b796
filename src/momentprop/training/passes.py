"""The forward pass of a model in training and in evaluation, by each of the three methods."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.calibration import Calibration
from momentprop.calibration.calibrated_module import Calibrated
from momentprop.normalization.pixel import evaluating
from momentprop.nothing_random import nothing_may_be_random
from momentprop.propagate import propagate
from momentprop.training.distributed import Ranks
from momentprop.training.loader import Loader, parts
from momentprop.training.losses import Objective
from momentprop.training.settings import Settings
from momentprop.training.training_examples import Examples
from momentprop.values import Mean, Normal, Value


@nothing_may_be_random()
def training_pass(model: nn.Module, inputs: Tensor, settings: Settings, calibration: Calibration | None = None) -> Any:
    """Run a model in training mode; AP2 returns a value, corrected by a calibration if there is one."""
    noise = settings.input_variance
    if settings.method == "ap1":
        return _means(model(Mean(inputs)))
    if settings.method == "ap2":
        given = Normal.of(inputs, torch.full_like(inputs, noise)) if noise > 0 else inputs
        return _moments(model, given, settings, calibration)
    return model(inputs + noise**0.5 * torch.randn_like(inputs) if noise > 0 else inputs)


@nothing_may_be_random()
def evaluation_pass(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    settings: Settings,
    objective: Objective,
    calibration: Calibration | None = None,
) -> Tensor:
    """Return the figures of every example in evaluation mode; with AP2 and sampling, dropout acts."""
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
    """Run AP2, corrected by a calibration, which in training may have been fitted to earlier weights."""
    if calibration is None:
        noise = {"input_variance": input_variance, "dropout": dropout}
        return propagate(model, given, family=settings.family, covariance=False, **noise)  # type: ignore[arg-type]
    return Calibrated(model, calibration, input_variance, dropout)(given)  # without a check of the weights


@torch.no_grad()
def evaluate(
    model: nn.Module,
    examples: Examples | Loader,
    settings: Settings,
    objective: Objective,
    ranks: Ranks,
    calibration: Calibration | None = None,
) -> dict[str, float]:
    """Return the averages of an objective over examples, which the processes share out."""
    sums = torch.zeros(len(objective.names), dtype=torch.float64, device=ranks.device)
    count = torch.zeros((), dtype=torch.float64, device=ranks.device)
    with evaluating(model), autocast(settings, ranks.device):
        for inputs, targets in parts(examples, ranks):
            given = converted(inputs, settings), converted(targets, settings)
            sums += evaluation_pass(model, *given, settings, objective, calibration).double().sum(1)
            count += len(targets)
    averages = (ranks.sum(sums) / ranks.sum(count)).tolist()
    return dict(zip(objective.names, averages, strict=True))


class _Drawn(nn.Module):
    """The model, followed by the quantity that the objective averages over draws."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.training = False

    def forward(self, inputs: Any) -> Any:
        return self.objective.draw(in_full(self.model(inputs)))


def converted(tensor: Tensor, settings: Settings) -> Tensor:
    """Convert a floating-point tensor to the type of the run; integers stay as they are."""
    return tensor.to(settings.torch_dtype) if tensor.is_floating_point() else tensor


def autocast(settings: Settings, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context for half precision where it is safe, if the settings ask for it."""
    return torch.autocast(device.type, torch.bfloat16) if settings.amp else contextlib.nullcontext()


def in_full(output: Any) -> Any:
    """Convert a half-precision output to float32, so that the loss is accurate."""
    if isinstance(output, tuple | list):
        return type(output)(in_full(part) for part in output)
    if output.dtype not in (torch.bfloat16, torch.float16):
        return output
    return output.each(Tensor.float) if isinstance(output, Value) else output.float()


def _means(output: Any) -> Any:
    if isinstance(output, tuple | list):
        return type(output)(_means(part) for part in output)
    return output.loc if isinstance(output, Mean) else output
