"""Calibration during the training: corrections of AP2 for the weights of the moment."""

import torch
from torch import nn

from momentprop.calibration import Calibration, calibrate
from momentprop.errors import UserError
from momentprop.normalization.pixel import evaluating
from momentprop.training.passes import converted
from momentprop.training.settings import Settings
from momentprop.training.training_examples import Examples, order

INPUTS = 64
"""How many training inputs a fit takes."""

SAMPLES = 100
"""How many draws of the noise it makes of each: their deviation is then known to 7 %."""


def fitted(
    model: nn.Module, examples: Examples, settings: Settings, epoch: int, device: torch.device | str
) -> Calibration:
    """A calibration of the model as it is, under the noise of the run; it depends on seed and epoch beside the weights.

    Every channel has a factor of its own, and nothing else, so that the gradient takes the corrections for constants.
    The model is evaluated, with dropout: a batch normalization takes its running statistics.
    """
    chosen = order(len(examples), settings.seed, epoch)[:INPUTS].to(device)
    inputs = converted(examples.batch(chosen)[0], settings)
    try:
        with evaluating(model):
            found = calibrate(
                model,
                inputs,
                input_variance=settings.input_variance or None,
                dropout=True,
                samples=SAMPLES,
                seed=settings.seed * 1_000_003 + epoch,
                family=settings.family,  # type: ignore[arg-type]
                features="channel",
            )
    except ValueError as error:
        raise UserError(f"there is nothing to calibrate in the training: {error}") from error
    return found.to(device)
