"""Calibration during training: corrections of AP2, fitted to the current weights."""

import torch
from torch import nn

from momentprop.calibration import Calibration, calibrate
from momentprop.errors import UserError
from momentprop.normalization.pixel import evaluating
from momentprop.training.loader import Loader, some_inputs
from momentprop.training.passes import converted
from momentprop.training.settings import Settings
from momentprop.training.training_examples import Examples, first_seed

INPUTS = 64
"""The number of training inputs of a fit."""

SAMPLES = 100
"""The number of draws of the noise for each input, which gives a deviation to 7 %."""


def fitted(
    model: nn.Module, examples: Examples | Loader, settings: Settings, epoch: int, device: torch.device | str
) -> Calibration:
    """Calibrate the model with its current weights, under the noise of the run; seed and epoch fix the draws.

    Every channel has only its own factor, so the gradient treats the corrections as constants. The model is in
    evaluation mode, but with dropout: a batch normalization uses its running statistics.
    """
    inputs = converted(some_inputs(examples, INPUTS, settings.seed, epoch, device), settings)
    try:
        with evaluating(model):
            found = calibrate(
                model,
                inputs,
                input_variance=settings.input_variance or None,
                dropout=True,
                samples=SAMPLES,
                seed=first_seed(settings.seed, epoch),
                family=settings.family,  # type: ignore[arg-type]
                features="channel",
            )
    except ValueError as error:
        raise UserError(f"training has nothing to calibrate: {error}") from error
    return found.to(device)
