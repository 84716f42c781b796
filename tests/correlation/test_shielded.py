"""Corrections of a calibration in a pass that is followed: both work as they do alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import calibrate, propagate
from momentprop.correlation.following import Following
from momentprop.correlation.shielded import Shielded
from momentprop.dispatch.context import Chain, Watcher
from momentprop.running import Run
from momentprop.values import Independent, Normal

X = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
FIT = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
VARIANCE = 0.3


def calibrated(model, **options):
    """The options of a calibrated run."""
    return {"input_variance": VARIANCE, "calibration": calibrate(model, FIT, input_variance=VARIANCE, samples=40)}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def test_the_means_and_all_inner_values_are_those_of_the_calibration(model):
    options = calibrated(model)
    alone, inside = propagate(model, X, **options, covariance=False, record=True)
    joint, within = propagate(model, X, **options, covariance=True, record=True)
    assert torch.equal(joint.loc, alone.loc)
    assert list(within) == list(inside)
    for name, value in inside.items():
        assert torch.equal(within[name].variance, value.variance)


def test_a_linear_network_has_its_exact_covariance_whatever_the_corrections_are():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)).double()
    joint = propagate(model, X, **calibrated(model), covariance=True)
    whole = model[1].weight @ model[0].weight
    assert torch.allclose(joint.covariance, (VARIANCE * whole @ whole.T).expand(3, 3, 3), rtol=1e-9)


def test_variances_are_held_constant_and_slopes_are_those_of_corrected_variances(model):
    """The covariance is that of the formula, with slopes and rests of both rectifiers as the recorded values give."""
    options = calibrated(model)
    _, inside = propagate(model, X, **options, covariance=False, record=True)
    weights = [model[i].weight for i in (0, 2, 4)]
    found = VARIANCE * (weights[0] @ weights[0].T).expand(3, 8, 8)
    for before, after, weight in (("0", "1", weights[1]), ("2", "3", weights[2])):
        x, y = inside[before], inside[after]
        slope = torch.special.ndtr(x.loc / x.stddev)  # the mean of the derivative of a rectifier
        rest = y.variance - slope**2 * x.variance
        found = weight @ (slope[:, :, None] * found * slope[:, None] + torch.diag_embed(rest)) @ weight.T
    joint = propagate(model, X, **options, covariance=True)
    assert torch.allclose(joint.covariance, found, rtol=1e-6)


def test_gradients_go_through_the_corrections(model):
    options = calibrated(model)
    direction = torch.randn(X.shape, dtype=X.dtype, generator=torch.Generator().manual_seed(2))

    def total(x):
        return propagate(model, x, **options, covariance=True).covariance.square().sum()

    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(x), x)
    step = 1e-5
    with torch.no_grad():
        difference = (total(X + step * direction) - total(X - step * direction)) / (2 * step)
    assert float((gradient * direction).sum()) == pytest.approx(float(difference), rel=1e-5)


class Gated(nn.Module):
    """Composites with operations inside that mix units: a calibration is not fitted to these."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(4, 3)

    def forward(self, x):
        half = F.glu(self.first(x))
        return self.last(torch.addcdiv(half, half, half.exp() + 2))


def test_a_calibration_does_not_see_what_composites_are_made_of():
    torch.manual_seed(0)
    model = Gated().double()
    options = calibrated(model)
    alone = propagate(model, X, **options, covariance=False)
    joint = propagate(model, X, **options, covariance=True)
    assert torch.allclose(joint.loc, alone.loc, rtol=1e-12)
    assert joint.covariance.isfinite().all()


class Fourfold(Watcher):
    """Makes the variance of every result four times as large, by way of its mean."""

    def after(self, call, result):
        return (
            result.of(result.loc, result.variance * (4 + 0 * result.loc)) if isinstance(result, Independent) else result
        )


def test_rests_are_those_of_uncorrected_variances():
    def births(*more):
        following = Following(False)
        corrections = [Shielded(following, *more)] if more else []
        with (
            torch.no_grad(),
            Run(nn.LayerNorm(6).double(), (X,), {}, VARIANCE).by(Normal, None, Chain(following, *corrections)) as once,
        ):
            output, _ = once()
        return output, following.births.found

    plain, alone = births()
    corrected, found = births(Fourfold())
    assert torch.allclose(corrected.variance, 4 * plain.variance)
    assert not corrected.variance.requires_grad
    assert len(found) == len(alone) == 2
    assert torch.equal(found[1].own, alone[1].own)
