"""A calibration under other noise, and on shifted images."""

import pytest
import torch

from momentprop_experiments.reproduction.calibration import (
    calibration_transfer,
)


def test_a_calibration_of_several_levels_fits_each_level(ran):
    data, text = ran(calibration_transfer.NAME)
    (network,) = data["networks"].values()
    assert list(network["matrix"]) == ["0.01", "0.1"]
    for level, found in network["matrix"].items():
        assert list(found) == ["ap1", "ap2", "0.01", "0.1", "several"]
        assert found["several"]["eps_std"] == pytest.approx(found[level]["eps_std"], rel=1e-3)
    assert network["matrix"]["0.01"]["0.1"] != network["matrix"]["0.01"]["0.01"]
    # four images are as many as the matrix is fitted to
    assert network["inputs"]["4 images"] == network["matrix"]["0.1"]["0.1"]
    assert set(network["inputs"]) == {"ap1", "ap2", "2 images", "4 images", "white noise", "statistics"}
    assert text.count("all of these levels") == 1


def test_the_shifts_do_what_their_names_say():
    pixels = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    brighter, flatter, blurred = (shift(pixels) for shift in calibration_transfer.SHIFTS.values())
    assert torch.equal(brighter, torch.minimum(pixels + 0.2, torch.ones(())))
    assert torch.allclose(flatter.mean((1, 2, 3)), pixels.mean((1, 2, 3)))
    assert torch.allclose(flatter.std((1, 2, 3)), 0.5 * pixels.std((1, 2, 3)))
    assert blurred.shape == pixels.shape
    assert blurred.std() < 0.5 * pixels.std()
    assert torch.allclose(calibration_transfer.SHIFTS["blur"](torch.full((1, 1, 6, 6), 0.7)), torch.tensor(0.7))
