"""The call `momentprop.calibrate`."""

import dataclasses
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from momentprop.calibration.calibration import Calibration, FitNoise, Quality, dropout_acts
from momentprop.calibration.corrections import COUNT, Features
from momentprop.calibration.fingerprint import of_what_lasts
from momentprop.calibration.fit import PlaceFit, at_level, summed, survey
from momentprop.checking.ranks import share
from momentprop.given import as_value, with_values
from momentprop.propagate import FAMILIES, Family
from momentprop.running import Run, may_vectorize
from momentprop.undoing import leaves_no_trace
from momentprop.values import Value
from momentprop.values.given_noise import the_variance

SAMPLES = 300
"""The default number of draws of a fit; they give a deviation to 4 %."""


@leaves_no_trace
def calibrate(
    model: Callable[..., Any],
    batches: Iterable[Any] | None,
    *,
    input_variance: Tensor | float | Sequence[float] | None = None,
    input_std: Tensor | float | Sequence[float] | None = None,
    dropout: bool = False,
    samples: int = SAMPLES,
    seed: int = 0,
    family: Family = "normal",
    features: Features = "all",
    statistics: Any = None,
    shape: Sequence[int] | None = None,
    inputs: int = 64,
    fallback: Any = None,
) -> Calibration:
    r"""Fit corrections of AP2 on a few inputs, so that its variances hold in deep networks.

    >>> import torch, momentprop
    >>> _ = torch.manual_seed(0)
    >>> layers = [torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.Tanh()) for _ in range(4)]
    >>> model = torch.nn.Sequential(*layers)
    >>> calibration = momentprop.calibrate(model, torch.randn(20, 30), input_variance=0.1)
    >>> y = momentprop.propagate(model, torch.randn(5, 30), input_variance=0.1, calibration=calibration)

    Args:
        model: any module, in evaluation mode, or a function.
        batches: an iterable of input batches; a few dozen inputs suffice. A batch is a tensor or a value; a tuple or a
            list, as from data loaders, whose first element is used; or a dictionary of keyword arguments. A single
            tensor is a single batch. None draws inputs from `statistics`.
        input_variance: the variance of the inputs, as in `propagate`, or a sequence of numbers. A sequence
            fits the corrections at each level and interpolates in the logarithm of the input's mean variance.
        input_std: the standard deviation instead, or a sequence of them.
        dropout: let dropout act in evaluation mode, as in `propagate`. Fit under the noise that you will use.
        samples: the number of draws for each batch and level.
        seed: the seed of the draws; torch's own generators keep their state.
        family: the family of AP2, as in `propagate`.
        features: what a correction depends on besides the channel: `"all"`, the unit's own mean and variance and the
            variances of other channels; `"state"`, the unit's own; `"variance"`; or nothing, `"channel"`.
        statistics: anything with `loc` and `variance`, one number or one for each channel; without batches, inputs are
            drawn from it.
        shape: the shape of one drawn input, channels first.
        inputs: the number of drawn inputs.
        fallback: as in `propagate`.

    If `torch.distributed` is initialized, each rank takes a part of every batch, and all ranks get the same result.
    """
    if samples < 2:
        raise ValueError(f"a variance takes at least 2 samples, but samples is {samples}")
    if not may_vectorize(model):
        raise ValueError("draws would change the running statistics of batch normalization: call `model.eval()` first")
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}: choose 'normal', 'logistic' or 'fitted'")
    if features not in COUNT:
        raise ValueError(f"unknown features {features!r}: choose 'all', 'state', 'variance' or 'channel'")
    levels = _levels(the_variance(input_variance, input_std))
    given = _like_weights(drawn_inputs(statistics, shape, inputs, seed), model) if batches is None else batches
    batched = _runs(model, given, {"dropout": dropout, "fallback": fallback}, seed)
    kind, runs = FAMILIES[family], [_at(batched, each) for each in levels]
    places = survey(runs[0][0], kind)
    if not any(place.corrected for place in places):
        raise ValueError(
            "no operation of the model mixes random units, so there is nothing to calibrate: if nothing is random, "
            "give an `input_variance`, or write `dropout=True`"
        )
    found = [at_level(run, kind, places, features, samples) for run in runs]
    fitted = [place for place in places if all(place in fits for fits, _ in found)]
    numbers = {place: together([fits[place] for fits, _ in found]) for place in fitted}
    ranks = {place: sum(fits[place].rank for fits, _ in found) for place in fitted}
    return Calibration(
        tuple(dataclasses.replace(place, corrected=place in fitted, rank=ranks.get(place, 0)) for place in places),
        features,
        FitNoise(
            tuple(each if isinstance(each, float) else mean for each, (_, mean) in zip(levels, found, strict=True)),
            isinstance(levels[0], float),
            dropout_acts(model, dropout),
            family,
        ),
        torch.cat([numbers[place].flatten(1) for place in fitted], 1).cpu(),
        {str(place): [_quality(fits[place], mean) for fits, mean in found] for place in fitted},
        _about(batched, samples, seed),
        of_what_lasts(model, _passed(batched[0])),
    )


@torch.no_grad()
def _passed(run: Run) -> Callable[..., Any]:
    """A copy of the model after a pass."""
    apart = run.apart()
    apart.plain()
    return apart.model


def _levels(given: Tensor | float | Sequence[float] | None) -> list[Tensor | float | None]:
    """The levels in ascending order; numbers are floats."""
    if given is None or isinstance(given, Tensor):
        return [given]
    if not isinstance(given, Sequence):
        return [float(given)]
    levels = sorted({float(each) for each in given})
    if not levels or (len(levels) > 1 and levels[0] <= 0):
        raise ValueError(
            f"input_variance must be a number, or several positive ones to interpolate between, but is {given}"
        )
    return list(levels)


def _runs(model: Callable[..., Any], batches: Iterable[Any], noise: dict[str, Any], seed: int) -> list[Run]:
    """This process's part of every batch."""
    if isinstance(batches, Tensor | Value | Distribution):
        batches = [batches]
    runs = []
    for i, batch in enumerate(batches):
        args, kwargs = _arguments(batch)
        runs.append(share(Run(model, args, kwargs, seed=seed + 1000 * i, **noise), ())[0])
        if runs[-1].batch_size == 0:
            raise ValueError(f"batch {i} is empty: give batches with at least one input")
    if not runs:
        raise ValueError("there are no batches: give at least one batch of inputs")
    return runs


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return with_values((), batch)  # type: ignore[return-value]
    if isinstance(batch, tuple | list) and batch:
        batch = batch[0]
    batch = as_value(batch)
    if not isinstance(batch, Tensor | Value):
        raise TypeError(
            f"a batch must be a tensor, a value, a tuple that begins with one, or a dictionary of arguments, "
            f"but is a {type(batch).__name__}"
        )
    return (batch,), {}


def _at(runs: Sequence[Run], variance: Tensor | float | None) -> list[Run]:
    """The runs with this variance of their inputs."""
    return [dataclasses.replace(run, input_variance=variance) for run in runs]


def drawn_inputs(statistics: Any, shape: Sequence[int] | None, count: int, seed: int) -> Tensor:
    """Random inputs with the mean and the variance of a data set in each channel.

    The pixels of an image are not independent, so noise of several scales is added along the dimensions after the
    first.
    """
    if statistics is None or shape is None:
        raise ValueError(
            "without batches, give `statistics`, such as `momentprop.input_statistics(inputs)`, and the `shape` of one "
            "input"
        )
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn((count, *shape), generator=generator)
    modes = {2: "linear", 3: "bilinear", 4: "trilinear"}
    if len(shape) in modes:
        sizes = list(shape[1:])
        while min(sizes) > 2:
            sizes = [max(2, size // 2) for size in sizes]
            coarse = torch.randn((count, shape[0], *sizes), generator=generator)
            noise += F.interpolate(coarse, size=tuple(shape[1:]), mode=modes[len(shape)], align_corners=True)
        noise = noise / noise.std()
    loc, variance = (torch.as_tensor(part, dtype=torch.float32).cpu() for part in (statistics.loc, statistics.variance))
    loc, variance = (part.reshape(-1, *[1] * (len(shape) - 1)) for part in (loc, variance))
    return loc + variance.sqrt() * noise


def _like_weights(inputs: Tensor, model: Callable[..., Any]) -> Tensor:
    """The inputs with the device and type of the model's weights, if it has any."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    return next((inputs.to(weight) for weight in weights if weight.is_floating_point()), inputs)


def together(fits: Sequence[PlaceFit]) -> Tensor:
    """The numbers of a place at all levels, shape (levels, numbers, channels).

    Every level holds the `down` matrices of all levels, and `up` matrices that are zero for other levels. Interpolating
    the numbers then interpolates the exponents.
    """
    down = torch.cat([fit.down for fit in fits])
    ups = torch.block_diag(*(torch.ones(1, fit.rank) for fit in fits)).to(down)[..., None] * torch.cat(
        [fit.up for fit in fits]
    )
    return torch.stack([torch.cat((fit.numbers, down, up)) for fit, up in zip(fits, ups, strict=True)])


def _quality(fitted: PlaceFit, level: float) -> Quality:
    return Quality(level, fitted.factors, fitted.before, fitted.after)


def _about(runs: Sequence[Run], samples: int, seed: int) -> dict[str, Any]:
    count = int(summed(torch.tensor(float(sum(run.batch_size for run in runs)))))
    return {
        "inputs": count,
        "batches": len(runs),
        "samples": samples,
        "seed": seed,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
