"""The regression of each channel, and what it borrows from its layer."""

import pytest
import torch

from momentprop.calibration import regression


def _layer(inputs, channels=12, units=20, differ=0.5):
    """A feature and what it explains in every channel, with errors that the units of an input share."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    slopes, constants = 0.3 + differ * normal(channels), 1 + differ * normal(channels)
    feature = normal(inputs, channels, units)
    error = 0.5 * normal(inputs, channels, 1) + 0.2 * normal(inputs, channels, units)
    y = constants[:, None] + slopes[:, None] * feature + error
    return regression.products([feature, y], torch.ones_like(y).bool()), torch.stack((constants, slopes), 1)


def test_the_regression_finds_the_coefficients_of_every_channel():
    per_row, wanted = _layer(2000)
    torch.testing.assert_close(regression.fit(per_row, lambda x: x).coefficients, wanted, atol=0.05, rtol=0)


def test_channels_that_do_not_differ_get_the_numbers_of_the_layer():
    per_row, wanted = _layer(8, channels=200, differ=0.0)
    found = regression.fit(per_row, lambda x: x).coefficients
    alone = per_row.sum(0)
    naive = alone[:, 0, 2] / alone[:, 0, 0]  # the mean of each channel
    assert (found - wanted).square().mean(0)[0].sqrt() < 0.3 * (naive - 1).square().mean().sqrt()


def test_few_inputs_shrink_by_as_much_as_their_errors_say():
    per_row, wanted = _layer(4, channels=400, differ=0.3)
    found = regression.fit(per_row, lambda x: x).coefficients
    totals = per_row.sum(0)
    naive = (totals[:, 0, 2] / totals[:, 0, 0])[:, None]
    assert (found - wanted)[:, 0].square().mean() < 0.8 * (naive[:, 0] - wanted[:, 0]).square().mean()


def test_one_input_is_enough_and_empty_channels_take_the_layers():
    per_row, _ = _layer(1)
    found = regression.fit(per_row, lambda x: x).coefficients
    assert found.isfinite().all()
    per_row, _ = _layer(50, differ=0.0)
    per_row[:, 3] = 0
    found = regression.fit(per_row, lambda x: x).coefficients
    assert found[3, 0] == pytest.approx(float(found[:, 0].median()), abs=0.1)
    nothing = regression.fit(torch.zeros(3, 2, 3, 3, dtype=torch.float64), lambda x: x)
    assert torch.equal(nothing.coefficients, torch.zeros(2, 2, dtype=torch.float64))
