"""Turns measurements into the figures of every module."""

import dataclasses
import math
from typing import Any

import torch

from momentprop.checking import metrics
from momentprop.checking.final_output import Probabilities
from momentprop.checking.joint_output import Correlations
from momentprop.checking.measure import Measured
from momentprop.checking.results import Accuracy, ModuleAccuracy, PosteriorAccuracy
from momentprop.values import Estimate
from momentprop.values.uncertain import Uncertain


def of_module(measured: Measured, samples: int, kind: str, same_as: str | None) -> ModuleAccuracy:
    """The figures of all methods at one output."""
    truth = measured.truth
    if not truth.loc.isfinite().all():
        raise ValueError(
            f"some draws at {measured.path!r} are NaN, or infinite where the methods are not, so that they have no "
            "variance: make the noise smaller, or change that module"
        )
    varying = metrics.varies(truth.stddev, truth.loc, measured.dtype)
    known: Estimate = truth.each(lambda part: part[varying])
    return ModuleAccuracy(
        type=kind,
        shape=measured.shape,
        units=len(truth.loc),
        zero=int((~varying).sum()),
        floor=_floor(known, samples, measured),
        methods={name: _of_method(measured, name, varying, samples) for name in measured.values},
        same_as=same_as,
    )


def _of_method(measured: Measured, name: str, varying: torch.Tensor, samples: int) -> Accuracy:
    value, truth = measured.values[name], measured.truth
    if not varying.any():
        return Accuracy()
    error = metrics.eps_mean(value.loc, truth)
    worth_mean = metrics.worth(error**2, metrics.eps_mean_floor(samples) ** 2, samples)
    if not isinstance(value, Uncertain):
        return Accuracy(eps_mean=_finite(error), worth_mean=_finite(worth_mean))
    told = varying & metrics.varies(value.stddev, truth.loc, measured.dtype)
    stddev, known = value.stddev[told], truth.each(lambda part: part[told])
    inside = measured.inside[name][:, varying].double().mean(1) / samples
    rms = metrics.rms_log_std(stddev, known)
    return Accuracy(
        eps_mean=_finite(error),
        eps_std=_finite(metrics.eps_std(stddev, known)),
        rms_log_std=_finite(rms),
        correlation=_finite(metrics.correlation(stddev, known)),
        coverage={_percent(level): float(share) for level, share in zip(measured.levels, inside, strict=True)},
        worth_mean=_finite(worth_mean),
        worth_std=_finite(metrics.worth(rms**2, metrics.rms_log_std_floor(known) ** 2, samples)),
        zero=int(varying.sum() - told.sum()),
    )


def _floor(truth: Estimate, samples: int, measured: Measured) -> Accuracy:
    if not len(truth.loc):
        return Accuracy()
    return Accuracy(
        eps_mean=metrics.eps_mean_floor(samples),
        eps_std=_finite(metrics.eps_std_floor(truth)),
        rms_log_std=_finite(metrics.rms_log_std_floor(truth)),
        correlation=_finite(metrics.correlation_ceiling(truth)),
        coverage={_percent(level): metrics.coverage_floor(level, samples) for level in measured.levels},
    )


def with_correlations(module: ModuleAccuracy, found: Correlations, samples: int) -> ModuleAccuracy:
    """The figures of the final output together with the errors of correlations between its units."""
    errors = {
        name: _finite(metrics.correlation_error(told, found.truth, found.varies))
        for name, told in found.methods.items()
        if name in module.methods
    }
    methods = {
        name: dataclasses.replace(each, correlation_error=errors.get(name)) for name, each in module.methods.items()
    }
    floor = _finite(metrics.correlation_error_floor(found.truth, found.varies, samples))
    return dataclasses.replace(
        module, methods=methods, floor=dataclasses.replace(module.floor, correlation_error=floor)
    )


def of_posterior(found: Probabilities, samples: int) -> PosteriorAccuracy:
    """The divergences of all class posteriors."""
    floor = metrics.divergence_floor(found.truth, found.variance, samples)
    divergences = {
        name: {figure: metrics.divergence(found.truth, log_q) for figure, log_q in posteriors.items()}
        for name, posteriors in found.log_q.items()
    }
    worth = {
        name: {figure: metrics.worth(kl, floor, samples) for figure, kl in measured.items()}
        for name, measured in divergences.items()
    }
    return PosteriorAccuracy(found.truth.shape[-1], floor, divergences, worth)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _percent(level: float) -> str:
    return f"{100 * level:g}"


def same_units(one: Measured, other: Measured) -> bool:
    """Whether two outputs are the same: all draws have the same moments."""
    pairs: list[tuple[Any, Any]] = [(one.truth.loc, other.truth.loc), (one.truth.variance, other.truth.variance)]
    return one.truth.loc.shape == other.truth.loc.shape and all(torch.equal(*pair) for pair in pairs)
