"""A calibrated model as a module."""

from typing import Any

from torch import Tensor, nn

from momentprop.calibration.calibration import Calibration
from momentprop.calibration.prepared import Keeper
from momentprop.given import with_values
from momentprop.propagate import FAMILIES
from momentprop.running import Run
from momentprop.values import Value
from momentprop.values.given_noise import the_variance


class Calibrated(nn.Module):
    """Runs a model by AP2 with the corrections of a calibration; the model itself stays unchanged.

    See `momentprop.calibrated`.
    """

    numbers: Tensor

    def __init__(
        self, model: nn.Module, calibration: Calibration, input_variance: Tensor | float | None, dropout: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.calibration = calibration
        self.input_variance = input_variance
        self.dropout = dropout
        self.register_buffer("numbers", calibration.numbers.clone(), persistent=False)
        self._keeper = Keeper()
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on tensors or values, and return its output with values in place of tensors."""
        args, kwargs = with_values(args, kwargs)  # type: ignore[assignment]
        fit = self.calibration
        kind = FAMILIES[fit.noise.family]
        has_values = any(isinstance(given, Value) for given in (*args, *kwargs.values()))
        variance = None if has_values else self._variance()
        run = Run(self.model, args, kwargs, variance, self.dropout)
        corrections = fit.applied(self.numbers)
        corrections.keeper = self._keeper  # of its own copy of the numbers
        with run.by(kind, watcher=corrections) as once:
            return once()[0]

    def _variance(self) -> Tensor | float | None:
        """The variance of inputs that are plain tensors."""
        if self.input_variance is not None:
            return self.input_variance
        noise = self.calibration.noise
        if len(noise.levels) == 1 and (noise.given or noise.levels[0] == 0):
            return noise.levels[0] if noise.given else None
        raise ValueError(
            "the noise of a plain input is unknown: write `calibrated(model, calibration, input_variance=...)`, or "
            "give a value with its variance"
        )


def calibrated(
    model: nn.Module,
    calibration: Calibration,
    *,
    input_variance: Tensor | float | None = None,
    input_std: Tensor | float | None = None,
    dropout: bool | None = None,
) -> Calibrated:
    r"""A module that runs `model` by AP2 with the corrections of a calibration, and leaves the model unchanged.

    It takes the arguments of the model, tensors or values, and returns values with corrected variances. For the
    covariance of the outputs as well, use `propagate(..., calibration=..., covariance=True)`. It can be differentiated,
    compiled, exported and moved to a device like any module. This call checks once that the calibration belongs to the
    model; passes do not check, and `calibration.require(model)` checks again. You can train the weights further, though
    the corrections remain those for the calibrated weights.

    >>> import torch, momentprop
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> calibration = momentprop.calibrate(model, torch.randn(16, 8), input_variance=0.1, samples=100)
    >>> runs = momentprop.calibrated(model, calibration)
    >>> runs(torch.randn(5, 8)).variance.shape  # of inputs with variance 0.1
    torch.Size([5, 3])

    Args:
        model: the module that was calibrated, or one with the same weights.
        calibration: the result of `momentprop.calibrate`.
        input_variance: the variance of plain input tensors; by default as in the fit.
        input_std: the standard deviation instead.
        dropout: whether dropout acts in evaluation mode; by default as in the fit.
    """
    calibration.require(model)
    acts = calibration.noise.dropout if dropout is None else dropout
    if dropout is not None:
        calibration.warn_of_dropout(model, dropout)
    return Calibrated(model, calibration, the_variance(input_variance, input_std), acts)
