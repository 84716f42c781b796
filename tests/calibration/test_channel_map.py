"""Maps between the channels of a layer: what other channels tell."""

import pytest
import torch

from momentprop.calibration import channel_map, corrections
from momentprop.calibration.calibrate import together
from momentprop.calibration.fit import PlaceFit


def _columns(noise=0.05, channels=20):
    """Units of 24 inputs that follow a map of rank 2 between channels, in two batches, and the map."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, channels, 30, generator=generator) - 3
    true = torch.randn(channels, 2, generator=generator) @ torch.randn(2, channels, generator=generator) / channels
    y = torch.einsum("ncp,cd->ndp", x + 3, true) + noise * torch.randn(x.shape, generator=generator)
    valid = torch.rand(x.shape, generator=generator) > 0.05
    return [(x[some], y[some], valid[some]) for some in (slice(10), slice(10, None))], true.double()


def test_a_map_between_channels_is_found_with_its_constant():
    columns, true = _columns()
    found = channel_map.fit(columns, lambda x: x)
    assert len(found.down) == channel_map.RANK
    assert (found.down.T @ found.up - true).norm() < 0.1 * true.norm()
    torch.testing.assert_close(found.constant, 3 * true.sum(0), atol=0.1, rtol=0)


def test_a_map_must_explain_inputs_held_out(monkeypatch):
    columns, _ = _columns()
    unrelated = [
        (x, torch.randn(y.shape, generator=torch.Generator().manual_seed(1)), valid) for x, y, valid in columns
    ]
    assert len(channel_map.fit(unrelated, lambda x: x).down) == 0
    monkeypatch.setattr(channel_map, "MOST", 19)
    assert len(channel_map.fit(columns, lambda x: x).down) == 0


@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6), (5, 6, 3), (5, 6, 3, 2)])
def test_a_map_acts_on_the_channels_wherever_they_are(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    down, up = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    channel = len(shape) - shape.index(6)
    wanted = (x.movedim(-channel, -1) @ down.T @ up).movedim(-1, -channel)
    torch.testing.assert_close(corrections.mapped(down, up, x, channel), wanted)


def test_a_correction_is_that_of_the_formula_with_the_map_in_it():
    generator = torch.Generator().manual_seed(0)
    loc, variance = torch.randn(2, 3, 4, 5, generator=generator), torch.rand(2, 3, 4, 5, generator=generator)
    numbers = 0.3 * torch.randn(corrections.rows("all", 2), 3, generator=generator)
    numbers[4], numbers[5] = -0.5, 0.5
    a, log_v = (loc / variance.sqrt()).clamp(-6, 6), variance.log()
    c, down, up = numbers[:4, :, None, None], numbers[6:8], numbers[8:10]
    exponent = c[0] + c[1] * log_v + c[2] * a + c[3] * a * a + torch.einsum("rc,rd,ndhw->nchw", up, down, log_v)
    assert (exponent.abs() > 0.5).any()
    wanted = variance * exponent.clamp(-0.5, 0.5).exp()
    torch.testing.assert_close(corrections.corrected("all", numbers[..., None, None], loc, variance), wanted)


def test_maps_of_several_levels_are_at_each_level_those_of_the_level():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 6, generator=generator)
    fits = [
        PlaceFit(torch.zeros(6, 6), *torch.randn(2, rank, 6, generator=generator), (1.0, 1.0, 1.0), 0.0, 0.0)
        for rank in (2, 0, 3)
    ]
    for fit, numbers in zip(fits, together(fits), strict=True):
        down, up = numbers[6:].chunk(2)
        assert len(down) == 5
        torch.testing.assert_close(corrections.mapped(down, up, x, 1), corrections.mapped(fit.down, fit.up, x, 1))
