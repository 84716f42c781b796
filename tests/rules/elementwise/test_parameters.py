"""Parameters outside the usual range: right as torch means them, or refused."""

import math

import pytest
import torch
import torch.nn.functional as F

from momentprop import Normal

INF = math.inf
RIGHT = {
    "hardshrink(-0.5)": lambda x: F.hardshrink(x, -0.5),
    "hardshrink(0)": lambda x: F.hardshrink(x, 0.0),
    "softshrink(0)": lambda x: F.softshrink(x, 0.0),
    "elu(-0.3)": lambda x: F.elu(x, -0.3),
    "elu(0)": lambda x: F.elu(x, 0.0),
    "elu(3)": lambda x: F.elu(x, 3.0),
    "celu(0.1)": lambda x: F.celu(x, 0.1),
    "leaky_relu(-3)": lambda x: F.leaky_relu(x, -3.0),
    "leaky_relu(1)": lambda x: F.leaky_relu(x, 1.0),
    "leaky_relu(100)": lambda x: F.leaky_relu(x, 100.0),
    "prelu(-2)": lambda x: F.prelu(x, torch.tensor([-2.0], dtype=x.dtype)),
    "rrelu(2, 3)": lambda x: F.rrelu(x, 2.0, 3.0),
    "rrelu(-2, -1)": lambda x: F.rrelu(x, -2.0, -1.0),
    "softplus(-1)": lambda x: F.softplus(x, -1.0),
    "softplus(50)": lambda x: F.softplus(x, 50.0),
    "softplus(threshold=1)": lambda x: F.softplus(x, 1.0, 1.0),
    "softplus(2, threshold=-1)": lambda x: F.softplus(x, 2.0, -1.0),
    "softplus(-1, threshold=1)": lambda x: F.softplus(x, -1.0, 1.0),
    "threshold(1, 5)": lambda x: F.threshold(x, 1.0, 5.0),
    "threshold(inf, 5)": lambda x: F.threshold(x, INF, 5.0),
    "threshold(-inf, 5)": lambda x: F.threshold(x, -INF, 5.0),
    "hardtanh(1, 1)": lambda x: F.hardtanh(x, 1.0, 1.0),
    "hardtanh(-inf, 1)": lambda x: F.hardtanh(x, -INF, 1.0),
    "hardtanh(0, inf)": lambda x: F.hardtanh(x, 0.0, INF),
    "hardtanh(-inf, inf)": lambda x: F.hardtanh(x, -INF, INF),
    "clamp(1, -1)": lambda x: torch.clamp(x, 1.0, -1.0),
    "clamp(-inf, 1)": lambda x: torch.clamp(x, -INF, 1.0),
    "pow(0)": lambda x: torch.pow(x, 0),
}
KINKS = (-1.0, -0.5, 0.0, 0.5, 1.0)


@pytest.mark.parametrize("function", RIGHT.values(), ids=RIGHT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_moments_are_those_of_torchs_function(function, dtype):
    mean, std = torch.meshgrid(
        torch.tensor([-2.0, -0.5, 0.0, 0.3, 1.0, 4.0]), torch.tensor([0.01, 0.5, 3.0]), indexing="ij"
    )
    y = function(Normal(mean.to(dtype), (std * std).to(dtype)))
    edges = (
        torch.cat(
            [
                torch.linspace(-9, 9, 601, dtype=torch.float64).expand(*mean.shape, 601),
                ((torch.tensor(KINKS) - mean[..., None]) / std[..., None]).clamp(-9, 9).double(),
            ],
            -1,
        )
        .sort(-1)
        .values
    )
    inner = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)  # midpoints: a kink is at an edge
    z = (edges[..., :-1, None] + (edges[..., 1:] - edges[..., :-1])[..., None] * inner).flatten(-2)
    weight = (edges[..., 1:] - edges[..., :-1])[..., None].expand(*edges.shape[:-1], edges.shape[-1] - 1, 5).flatten(-2)
    weight = weight * torch.exp(-0.5 * z * z)
    weight = weight / weight.sum(-1, keepdim=True)
    truth = function((mean[..., None] + std[..., None] * z).double())
    centre = (weight * truth).sum(-1)
    deviation = (weight * (truth - centre[..., None]) ** 2).sum(-1).sqrt()
    assert (y.variance >= 0).all()
    assert ((y.loc.double() - centre).abs() <= 2e-4 * deviation + 1e-6 * (1 + centre.abs())).all()
    assert ((y.stddev.double() - deviation).abs() <= 2e-3 * deviation + 1e-6).all()


@pytest.mark.parametrize("function", RIGHT.values(), ids=RIGHT)
def test_zero_variance_is_torchs_function(function):
    mean = torch.tensor([-2.0, -0.5, 0.0, 0.3, 1.0, 4.0])
    y = function(Normal(mean, 0.0))
    assert torch.equal(y.loc, function(mean))
    assert torch.equal(y.variance, torch.zeros_like(mean))


REFUSED = {
    "softshrink(-1)": (lambda x: F.softshrink(x, -1.0), "lambda must be in range"),
    "hardtanh(1, -1)": (lambda x: F.hardtanh(x, 1.0, -1.0), "min_val cannot be greater than max_val"),
    "rrelu(2, 1)": (lambda x: F.rrelu(x, 2.0, 1.0), "lower <= upper"),
    "celu(-1)": (lambda x: F.celu(x, -1.0), "alpha > 0"),
    "celu(0)": (lambda x: F.celu(x, 0.0), "alpha > 0"),
    "softplus(0)": (lambda x: F.softplus(x, 0.0), "other than 0"),
    "clamp(nan)": (lambda x: torch.clamp(x, math.nan, 1.0), "leave it finite"),
    "clamp(inf)": (lambda x: torch.clamp(x, INF), "leave it finite"),
    "clamp(max=-inf)": (lambda x: torch.clamp(x, max=-INF), "leave it finite"),
}


@pytest.mark.parametrize(("function", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_moments_is_refused(function, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        function(Normal(torch.zeros(2), 1.0))
