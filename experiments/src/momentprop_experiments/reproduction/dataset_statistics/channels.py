r"""The statistics of every channel of a network over images and positions, and the errors of an estimate of them.

>>> import torch
>>> from momentprop_experiments.reproduction.dataset_statistics.channels import compare, measure
>>> images = torch.randn(1000, 3, 8, 8)
>>> truth = measure(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), images, ["0"])["0"]
>>> truth.loc.shape, compare(truth.loc, truth.stddev, truth)
(torch.Size([4]), Errors(eps_mean=0.0, eps_std=1.0, rms_log_std=0.0, constant=0, zero=0))
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from momentprop.checking import metrics
from momentprop.recording import Recording
from momentprop.sampling import RunningMoments
from momentprop.torch_compat.replica import Replica
from momentprop.values import Estimate, Mean

AT_ONCE = 250
"""The number of images in a forward pass."""


@torch.no_grad()
def measure(model: nn.Module, images: Tensor, paths: Sequence[str]) -> dict[str, Estimate]:
    """Measure the mean and variance of each channel at these modules, over all images and positions.

    The model runs in its current mode on some images at a time, and only sums are kept. The standard errors of the
    result treat all positions as independent, which they are not.
    """
    moments: dict[str, RunningMoments] = defaultdict(RunningMoments)

    def take_up(path: str, value: Mean) -> None:
        moments[path].add(value.loc.movedim(1, -1).flatten(0, -2))

    replica, recording = Replica(model), Recording(model, Mean, paths, take_up)
    with recording.on(replica):
        for part in images.split(AT_ONCE):
            recording.start()
            replica.model(part)
    return {path: moments[path].estimate(torch.float64) for path in paths}


@dataclass(frozen=True)
class Errors:
    """The errors of the estimated statistics of a module's channels; None if no channel varies."""

    eps_mean: float | None = None
    eps_std: float | None = None
    rms_log_std: float | None = None
    constant: int = 0  # channels that vary less than the rounding of float32; they are left out
    zero: int = 0  # channels that vary, but not in the estimate; the deviations leave them out


def compare(loc: Tensor, stddev: Tensor, truth: Estimate) -> Errors:
    r"""Return the errors of means and deviations as the paper defines them.

    `eps_mean` is the average $|\mu - \mu^*|$ over the average $\sigma^*$ and `eps_std` the geometric mean of
    $\sigma/\sigma^*$ over channels. `rms_log_std` is the root mean square of $\log(\sigma/\sigma^*)$: how far off a
    single channel is.
    """
    varying = metrics.varies(truth.stddev, truth.loc, torch.float32)
    constant = int((~varying).sum())
    if not varying.any():
        return Errors(constant=constant)
    known: Estimate = truth.each(lambda part: part[varying])
    loc, stddev = loc.to(truth.loc)[varying], stddev.to(truth.loc)[varying]
    told = stddev > 0
    deviations: tuple[Tensor, Estimate] = stddev[told], known.each(lambda part: part[told])
    return Errors(
        metrics.eps_mean(loc, known),
        metrics.eps_std(*deviations) if told.any() else None,
        metrics.rms_log_std(*deviations) if told.any() else None,
        constant,
        int((~told).sum()),
    )
