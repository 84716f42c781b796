"""Whole networks that people use, unmodified: limits, gradients, accuracy against draws, and compilation."""

from typing import NamedTuple

import pytest
import torch

from tests.architectures import ARCHITECTURES, SMALL, WITH_DROPOUT, Architecture
from tests.architectures.__main__ import DRAWS, NOISE, PAGE
from tests.architectures.measure import (
    Accuracy,
    accuracy_under_dropout,
    accuracy_under_noise,
    compiled_error,
    error_at,
    gradients,
    plain_gradients,
)


class Stated(NamedTuple):
    """What was measured of a network, rounded: see `docs/architectures.md`."""

    mean: float  # error of the mean in deviations
    std: float  # ratio of the deviations
    correlation: float

    def holds_for(self, found: Accuracy) -> bool:
        return (
            found.mean_ap2 < self.mean + found.mean_floor
            and abs(found.std - self.std) < 0.06
            and found.correlation > self.correlation - 0.12
        )


UNDER_NOISE = {  # of deviation 0.1, and of 0.5
    "ResNet-18, width 16": (Stated(0.070, 1.03, 0.55), Stated(0.15, 0.86, 0.42)),
    "U-Net": (Stated(0.10, 0.93, 0.91), Stated(0.37, 0.82, 0.92)),
    "ViT, written by hand": (Stated(0.034, 1.00, 0.50), Stated(0.12, 1.01, 0.60)),
    "BERT": (Stated(0.021, 0.89, 0.75), Stated(0.078, 0.91, 0.74)),
    "ResNet-18": (Stated(0.041, 0.98, 0.57), Stated(0.16, 0.87, 0.84)),
    "ResNet-50": (Stated(0.15, 0.84, 0.70), Stated(0.87, 0.59, 0.63)),
    "VGG-11": (Stated(0.055, 0.94, 0.59), Stated(0.43, 0.77, 0.62)),
    "VGG-11 with BatchNorm": (Stated(0.089, 0.91, 0.38), Stated(0.65, 0.68, 0.43)),
    "DistilBERT": (Stated(0.021, 0.92, 0.84), Stated(0.074, 0.94, 0.85)),
    "T5 encoder": (Stated(0.015, 1.03, 0.76), Stated(0.046, 1.02, 0.80)),
    "GPT-2": (Stated(0.014, 0.95, 0.85), Stated(0.045, 0.96, 0.85)),
    "ViT": (Stated(0.024, 1.00, 0.77), Stated(0.079, 1.03, 0.76)),
    "DINOv2": (Stated(0.042, 0.92, 0.65), Stated(0.11, 0.94, 0.61)),
    "Swin": (Stated(0.056, 0.50, 0.78), Stated(0.17, 0.52, 0.73)),
    "ConvNeXt": (Stated(0.014, 0.99, 0.78), Stated(0.032, 1.00, 0.70)),
    "SegFormer": (Stated(0.047, 0.88, 0.81), Stated(0.12, 0.92, 0.78)),
    "MobileNetV2": (Stated(0.12, 0.85, 0.71), Stated(0.14, 0.84, 0.33)),
    "CLIP": (Stated(0.037, 1.00, 0.65), Stated(0.15, 0.99, 0.62)),
}

UNDER_DROPOUT = {
    "VGG-11 with BatchNorm": Stated(0.026, 0.99, 0.89),
    "ViT, written by hand": Stated(0.038, 1.01, 0.64),
    "BERT from token ids": Stated(0.062, 0.96, 0.86),
    "GPT-2 from token ids": Stated(0.070, 0.96, 0.83),
}


def _marks(architecture: Architecture, small: list[Architecture]) -> list[pytest.MarkDecorator]:
    return [] if architecture in small else [pytest.mark.full]


def _each(architectures: list[Architecture], small: list[Architecture]) -> pytest.MarkDecorator:
    cases = [pytest.param(case, id=case.name, marks=_marks(case, small)) for case in architectures]
    return pytest.mark.parametrize("architecture", cases)


@pytest.fixture(autouse=True)
def _transformers_where_needed(request: pytest.FixtureRequest) -> None:
    architecture = request.node.callspec.params.get("architecture") if hasattr(request.node, "callspec") else None
    if architecture is not None and architecture.needs_transformers:
        pytest.importorskip("transformers")


@_each(ARCHITECTURES, SMALL)
def test_at_vanishing_variance_the_mean_is_the_plain_output(architecture: Architecture) -> None:
    assert error_at(architecture, 0.0, torch.float32) < 2e-6
    assert error_at(architecture, 0.0, torch.float64) < 1e-13
    assert error_at(architecture, 1e-12, torch.float64) < 2e-6


@_each(ARCHITECTURES, SMALL)
def test_gradients_reach_the_parameters_they_reach_in_torch(architecture: Architecture) -> None:
    plain, found = plain_gradients(architecture), gradients(architecture, 0.01, "loc variance")
    assert set(found) == set(plain)
    for name, gradient in found.items():
        assert gradient.isfinite().all(), name
        assert gradient.any() or not plain[name].any(), f"the gradient of {name} vanished"


@_each(ARCHITECTURES, SMALL)
def test_gradients_of_a_certain_input_are_those_of_the_plain_network(architecture: Architecture) -> None:
    plain = plain_gradients(architecture, torch.float64)
    found = gradients(architecture, 0.0, "loc", torch.float64)
    tolerance = 1e-7 if architecture.name == "T5 encoder" else 1e-10  # T5 takes the root mean square in float32
    scale = max(float(gradient.abs().max()) for gradient in plain.values())
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, plain[name], rtol=tolerance, atol=tolerance * scale, msg=name)


@pytest.mark.parametrize("std", NOISE)
@_each(ARCHITECTURES, SMALL)
def test_moments_under_input_noise_agree_with_draws_as_stated(architecture: Architecture, std: float) -> None:
    found = accuracy_under_noise(architecture, std, draws=400 if architecture in SMALL else DRAWS)
    assert UNDER_NOISE[architecture.name][NOISE.index(std)].holds_for(found), found
    assert found.mean_ap2 < found.mean_ap1


@_each(WITH_DROPOUT, [case for case in WITH_DROPOUT if case.name == "BERT from token ids"])
def test_moments_under_dropout_agree_with_draws_as_stated(architecture: Architecture) -> None:
    found = accuracy_under_dropout(architecture, draws=400)
    assert UNDER_DROPOUT[architecture.name].holds_for(found), found
    assert found.mean_ap2 < found.mean_ap1


@pytest.mark.full
@_each(ARCHITECTURES, ARCHITECTURES)
def test_compiled_gives_what_eager_gives(architecture: Architecture) -> None:
    assert compiled_error(architecture) < 1e-5


def test_the_page_shows_every_network() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    for architecture in (*ARCHITECTURES, *WITH_DROPOUT):
        assert any(row.startswith(f"| {architecture} |") for row in rows), architecture
