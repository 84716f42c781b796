r"""Class posteriors of noisy test images by AP1, AP2, calibrated AP2 and Monte Carlo, and their cost.

Every test image gets one draw of noise. From the noisy image $x$ and the variance $v$ of the noise, a method computes
the class posterior $E\,\mathrm{softmax}(f(x + \varepsilon))$ with $\varepsilon \sim N(0, v)$: the network's average
answer for the images that noise could have turned into $x$, if all were equally likely.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import momentprop
from momentprop import Normal
from momentprop.calibration import Calibration
from momentprop.checking import cost
from momentprop.checking.metrics import divergence, divergence_floor
from momentprop.functional import class_posterior
from momentprop.sampling import progress
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.calibration.calibration_posterior_report import markdown, plot
from momentprop_experiments.reproduction.noisy_networks import (
    IMAGES,
    SAMPLES,
    LoadedNetwork,
    NoisyNetwork,
    Setting,
    exact_convolutions,
)
from momentprop_experiments.reproduction.outcome import Outcome, rounded
from momentprop_experiments.reproduction.posterior_scores import coverage, mean_of_softmax, scores

NAME = "calibration-posterior"
TITLE = "Class posteriors of noisy test images by calibrated AP2 and by Monte Carlo (table; takes a GPU)"

CASES = {
    "lenet-0.1": NoisyNetwork("LeNet, LReLU, N(0, 0.1)", "lenet-lrelu", "mnist", 0.1),
    "lenet-1": NoisyNetwork("LeNet, LReLU, N(0, 1)", "lenet-lrelu", "mnist", 1.0),
    "cifar-0.01": NoisyNetwork("CIFAR, LReLU, N(0, 0.01)", "cifar-lrelu", "cifar10", 0.01),
    "cifar-0.1": NoisyNetwork("CIFAR, LReLU, N(0, 0.1)", "cifar-lrelu", "cifar10", 0.1),
}

COUNTS = (8, 32, 128)
"""The numbers of Monte Carlo draws to compare."""

TRUTH = "the truth"
"""The name of the posterior of many draws, separate from those of Monte Carlo."""


@dataclass(frozen=True)
class PosteriorEffort:
    """How much to measure."""

    images: int  # to fit to
    samples: int
    test: int
    draws: int  # of the truth, separate from those of Monte Carlo
    timed: int  # images at once, for the cost
    cases: Sequence[str] = tuple(CASES)


FULL = PosteriorEffort(IMAGES, SAMPLES, 2048, 512, 128)
ON_CPU = PosteriorEffort(16, 100, 128, 128, 32)
QUICK = PosteriorEffort(4, 10, 20, 20, 4, ("lenet-1",))


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Try all methods on noisy images; `quick` takes LeNet and a few embedded digits."""
    data = measure(options)
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def measure(options: Options) -> dict[str, Any]:
    """Measure all numbers of the table."""
    setting = Setting(options)
    effort = options.choose(QUICK, ON_CPU, FULL)
    cases = {}
    with progress(len(effort.cases), NAME) as bar, exact_convolutions(), torch.no_grad():
        for name in effort.cases:
            subject = setting.subject(CASES[name], effort.images, effort.test)
            cases[name] = {"title": subject.case.title, "methods": _measure(subject, effort)}
            bar.update(1)
    return {"test_images": effort.test, "draws": effort.draws, "timed_images": effort.timed, "cases": cases}


@dataclass(frozen=True)
class Prediction:
    """A method's answer for noisy images: log class probabilities, and the moments of the logits, if any."""

    log_q: Tensor  # shape: (images, classes)
    logits: Normal | None = None


def _measure(subject: LoadedNetwork, effort: PosteriorEffort) -> dict[str, Any]:
    variance = subject.case.variance
    assert variance is not None
    generator = torch.Generator(subject.test.device).manual_seed(0)
    noisy = _noisy(subject.test, variance, generator)
    # the first draws are those of Monte Carlo, the rest are the truth
    draws = torch.stack([subject.model(_noisy(noisy, variance, generator)) for _ in range(max(COUNTS) + effort.draws)])
    fresh = draws[max(COUNTS) :]
    calibration = subject.calibrate(samples=effort.samples)
    told = {
        "AP1": Prediction(subject.model(noisy).log_softmax(-1)),
        "AP2": _by_ap2(subject, noisy, None),
        "calibrated AP2": _by_ap2(subject, noisy, calibration),
        **{f"Monte Carlo, {count}": _by_draws(draws[:count]) for count in COUNTS},
        TRUTH: Prediction(mean_of_softmax(fresh)),
    }
    passes = _costs(subject, noisy[: effort.timed], variance, calibration)
    clean = subject.model(subject.test)
    probabilities = fresh.double().softmax(-1)
    truth = probabilities.mean(0)
    found = {
        name: {
            "forward_passes": rounded(passes.get(name), 3),
            **scores(each.log_q, subject.labels),
            **_kl(truth, each.log_q.double()),
            "coverage": coverage(each.logits, fresh),
            "coverage_of_clean": coverage(each.logits, clean[None]),
        }
        for name, each in told.items()
    }
    floor = divergence_floor(truth, probabilities.var(0), effort.draws)  # the divergence of the exact posterior
    return {**found, TRUTH: {**found[TRUTH], "kl": rounded(floor)}}


def _kl(truth: Tensor, log_q: Tensor) -> dict[str, float | None]:
    """Return the divergence of the class posterior and its standard error over the images."""
    each = [divergence(p, q) for p, q in zip(truth[:, None], log_q[:, None], strict=True)]
    error = statistics.stdev(each) / len(each) ** 0.5
    return {"kl": rounded(statistics.fmean(each)), "kl_error": rounded(error, 2)}


def _noisy(images: Tensor, variance: float, generator: torch.Generator | None = None) -> Tensor:
    noise = torch.randn(images.shape, generator=generator, device=images.device)
    return torch.add(images, noise, alpha=variance**0.5)


def _by_ap2(subject: LoadedNetwork, images: Tensor, calibration: Calibration | None) -> Prediction:
    variance = subject.case.variance
    logits = momentprop.propagate(
        subject.model, images, input_variance=variance, calibration=calibration, covariance=False
    )
    return Prediction(class_posterior(logits).logits, logits)


def _by_draws(draws: Tensor) -> Prediction:
    variance, mean = torch.var_mean(draws, 0)
    return Prediction(mean_of_softmax(draws), Normal(mean, variance))


def _costs(subject: LoadedNetwork, images: Tensor, variance: float, calibration: Calibration) -> dict[str, float]:
    """Measure the time of each method, including its class posterior, in forward passes of the plain network."""

    def sampled(count: int) -> Callable[[], Any]:
        return lambda: _by_draws(torch.stack([subject.model(_noisy(images, variance)) for _ in range(count)]))

    runs: dict[str, Callable[[], Any]] = {
        "AP1": lambda: subject.model(images).log_softmax(-1),
        "AP2": lambda: _by_ap2(subject, images, None),
        "calibrated AP2": lambda: _by_ap2(subject, images, calibration),
        **{f"Monte Carlo, {count}": sampled(count) for count in COUNTS},
    }
    return cost.measured(lambda: subject.model(images), runs)
