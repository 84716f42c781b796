r"""Noisy and missing pixels: trained networks on images whose pixels are known only by mean and variance.

Every test image gets one draw of noise of a known variance $v_i$, which may differ from pixel to pixel; a pixel is then
known as $N(x_i, v_i)$. A missing pixel is known by its mean and variance over the training images. AP1 uses only the
means (mean imputation, for missing pixels). AP2 and Monte Carlo compute the class posterior from means and variances,
and treat the pixels as independent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop import Normal
from momentprop.calibration import Calibration
from momentprop.functional import class_posterior
from momentprop.sampling import progress
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.noisy_inputs.noisy_inputs_report import draw_with_pictures, markdown, shown
from momentprop_experiments.reproduction.noisy_networks import LoadedNetwork, NoisyNetwork, Setting, exact_convolutions
from momentprop_experiments.reproduction.outcome import Outcome, rounded
from momentprop_experiments.reproduction.posterior_scores import mean_of_softmax, rejection, scores

NAME = "noisy-inputs"
TITLE = "Images with noisy and missing pixels: accuracy, calibration and rejection (tables, figure)"

COUNTS = (8, 32, 128)
"""The numbers of Monte Carlo draws to compare."""

_AT_ONCE = 500  # images

Corruption = Callable[[Tensor, Normal, torch.Generator], Normal]
"""A function from images, and the moments of each pixel over the training images, to what is known about the images."""


def noise(variance: float) -> Corruption:
    """Return a corruption by noise of one variance."""
    return uneven(variance, variance)


def uneven(low: float, high: float) -> Corruption:
    """Return a corruption by noise whose variance differs from pixel to pixel, with a uniform logarithm."""

    def corrupt(images: Tensor, _: Normal, generator: torch.Generator) -> Normal:
        where = torch.rand(_one_channel(images), generator=generator, device=images.device)
        variance = (low * (high / low) ** where).expand_as(images)
        drawn = torch.randn(images.shape, generator=generator, device=images.device)
        return Normal(images + variance.sqrt() * drawn, variance)

    return corrupt


def with_prior(corrupt: Corruption) -> Corruption:
    r"""Return the same corruption combined with a prior: the moments $m, v$ of each pixel in the training images.

    By Bayes' rule for normal distributions, a pixel seen as $x_i$ under noise of variance $v_i$ has the mean $m + w(x_i
    - m)$ and the variance $w v_i$ with $w = v/(v + v_i)$, between those of a seen and of a missing pixel.
    """

    def known(images: Tensor, typical: Normal, generator: torch.Generator) -> Normal:
        seen = corrupt(images, typical, generator)
        weight = typical.variance / (typical.variance + seen.variance)
        return Normal(typical.loc + weight * (seen.loc - typical.loc), weight * seen.variance)

    return known


def missing(share: float) -> Corruption:
    """Return a corruption that drops this share of the pixels at random."""

    def corrupt(images: Tensor, typical: Normal, generator: torch.Generator) -> Normal:
        mask = torch.rand(_one_channel(images), generator=generator, device=images.device) < share
        return Normal.missing(images, mask, typical.loc, typical.variance)

    return corrupt


def block(side: float) -> Corruption:
    """Return a corruption that drops a block anywhere in the image, with this share of its height and width."""

    def corrupt(images: Tensor, typical: Normal, generator: torch.Generator) -> Normal:
        height, width = images.shape[-2:]
        rows, columns = (
            _run(len(images), length, round(side * length), generator, images.device) for length in (height, width)
        )
        mask = (rows[:, :, None] & columns[:, None, :])[:, None]  # shape: (images, 1, height, width)
        return Normal.missing(images, mask, typical.loc, typical.variance)

    return corrupt


def _one_channel(images: Tensor) -> tuple[int, ...]:
    return (len(images), 1, *images.shape[2:])


def _run(count: int, length: int, part: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Mark a run of `part` of `length` positions that starts anywhere, `count` times."""
    first = torch.randint(length - part + 1, (count, 1), generator=generator, device=device)
    positions = torch.arange(length, device=device)
    return (positions >= first) & (positions < first + part)


_MISSING = {
    "missing 25 %": missing(0.25),
    "missing 50 %": missing(0.5),
    "missing 75 %": missing(0.75),
    "missing block": block(0.5),
}


@dataclass(frozen=True)
class CorruptedNetwork:
    """A trained network, and the corruptions of its images, which have mean 0 and variance 1 in each channel."""

    case: NoisyNetwork
    corruptions: Mapping[str, Corruption]


def _noisy(variances: Sequence[float], low: float, high: float) -> dict[str, Corruption]:
    """Return corruptions by noise of these variances, and by uneven noise with and without a prior."""
    even = {f"noise {variance:g}": noise(variance) for variance in variances}
    return even | {"uneven noise": uneven(low, high), "uneven, prior": with_prior(uneven(low, high))}


_DIGITS = _noisy((0.3, 1, 3), 0.03, 30) | _MISSING

NETWORKS = {
    "lenet": CorruptedNetwork(NoisyNetwork("LeNet (MNIST)", "lenet-lrelu", "mnist"), _DIGITS),
    "lenet-noisy": CorruptedNetwork(
        NoisyNetwork("LeNet, trained by AP2 with input variance 1", "lenet-noisy", "mnist"), _DIGITS
    ),
    "cifar": CorruptedNetwork(
        NoisyNetwork("CIFAR-10 network", "cifar-lrelu", "cifar10"),
        _noisy((0.01, 0.1, 0.3), 0.001, 1) | _MISSING,
    ),
}


@dataclass(frozen=True)
class NoisyInputsEffort:
    """How much to measure."""

    test: dict[str, int]  # images by network
    brief: frozenset[str] = frozenset()  # networks to test only on the figure's corruptions
    fitted: int = 64  # images to fit a calibration to
    samples: int = 300  # draws to fit it to
    typical: int = 5000  # training images for the moments of each pixel


FULL = NoisyInputsEffort({"lenet": 10_000, "lenet-noisy": 10_000, "cifar": 2000})
ON_CPU = NoisyInputsEffort(
    {"lenet": 2000, "lenet-noisy": 2000, "cifar": 32}, frozenset({"cifar"}), fitted=32, samples=100
)
QUICK = NoisyInputsEffort({"lenet": 40, "lenet-noisy": 40}, frozenset(NETWORKS), fitted=4, samples=20, typical=500)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Try all methods on all corruptions; `quick` uses LeNet, the embedded digits and few corruptions."""
    setting = Setting(options)
    effort = options.choose(QUICK, ON_CPU, FULL)
    data: dict[str, Any] = {"fitted_to": effort.fitted, "samples": effort.samples, "networks": {}}
    pictures = {}
    with progress(len(effort.test), NAME) as bar, exact_convolutions(), torch.no_grad():
        for name in effort.test:
            data["networks"][name], pictures[name] = measure(name, setting, effort)
            bar.update(1)
    return Outcome(data, markdown(TITLE, data), draw_with_pictures(out, NAME, data, pictures))


def measure(name: str, setting: Setting, effort: NoisyInputsEffort) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure all numbers of a network, and return one image under each corruption for the figure."""
    network, images = NETWORKS[name], effort.test[name]
    subject = setting.subject(network.case, effort.typical, images)
    variance, mean = torch.var_mean(subject.train, 0, correction=0)
    typical = Normal(mean, variance)
    chosen = shown(network.corruptions) if name in effort.brief else list(network.corruptions)
    found, pictures = {}, {}
    for corruption in chosen:
        found[corruption], known = _measure(subject, network.corruptions[corruption], typical, effort)
        pictures[corruption] = _picture(subject, known, hide="missing" in corruption)
    clean = scores(subject.model(subject.test).log_softmax(-1), subject.labels)
    about = {"title": network.case.title, "data": network.case.data, "test_images": images}
    return {**about, "clean": clean, "corruptions": found}, pictures


def _measure(
    subject: LoadedNetwork, corrupt: Corruption, typical: Normal, effort: NoisyInputsEffort
) -> tuple[dict[str, Any], Normal]:
    """Return the scores of each method, and what was known about the images."""
    generator = torch.Generator(subject.test.device).manual_seed(0)
    known = corrupt(subject.test, typical, generator)
    fitted = corrupt(subject.train[: effort.fitted], typical, generator)
    calibration = momentprop.calibrate(subject.model, [fitted], samples=effort.samples).to(subject.test.device)
    told = posteriors(subject.model, known, calibration, generator)
    base = _losses(told["AP1"], subject.labels)
    found = {}
    for name, log_q in told.items():
        gain = base - _losses(log_q, subject.labels)
        found[name] = {
            **scores(log_q, subject.labels),
            "nll_gain": rounded(float(gain.mean())),  # over AP1, on the same images
            "nll_gain_error": rounded(float(gain.std()) / len(gain) ** 0.5, 2),
            "kept": rejection(log_q, subject.labels),
        }
    return found, known


def posteriors(
    model: nn.Module, known: Normal, calibration: Calibration, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the logarithm of the class posterior by each method."""
    parts = [
        _posteriors(model, Normal.of(loc, variance), calibration, generator)
        for loc, variance in zip(known.loc.split(_AT_ONCE), known.variance.split(_AT_ONCE), strict=True)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _posteriors(
    model: nn.Module, known: Normal, calibration: Calibration, generator: torch.Generator
) -> dict[str, Tensor]:
    draws = torch.stack([model(known.sample(generator=generator)) for _ in range(max(COUNTS))])
    return {
        "AP1": model(known.loc).log_softmax(-1),
        "AP2": class_posterior(momentprop.propagate(model, known, covariance=False)).logits,
        "calibrated AP2": class_posterior(
            momentprop.propagate(model, known, calibration=calibration, covariance=False)
        ).logits,
        **{f"Monte Carlo, {count}": mean_of_softmax(draws[:count]) for count in COUNTS},
    }


def _losses(log_q: Tensor, labels: Tensor) -> Tensor:
    return -log_q.gather(-1, labels[:, None])[:, 0].double()


def _picture(subject: LoadedNetwork, known: Normal, hide: bool) -> Any:
    """Return the first image as an array (height, width, channels) in [0, 1]; `hide` makes unknown pixels NaN."""
    image = (known.loc[0] * subject.std[:, None, None] + subject.mean[:, None, None]).clamp(0, 1)
    if hide:
        image = image.masked_fill((known.variance[0] > 0).any(0), float("nan"))
    return image.permute(1, 2, 0).cpu().numpy()
