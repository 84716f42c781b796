"""Resampling, against the square of its Jacobian."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Normal
from momentprop.dispatch import MissingRule

SHAPES = {1: (2, 2, 5), 2: (1, 2, 4, 5), 3: (1, 2, 2, 3, 4)}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
POINTS = torch.rand(1, 3, 4, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3 - 1.5
POINTS_3D = torch.rand(1, 2, 3, 2, 3, generator=torch.Generator().manual_seed(6), dtype=torch.float64) * 3 - 1.5


def _modes() -> dict[str, tuple[int, Callable[[Any], Any]]]:
    found: dict[str, tuple[int, Callable[[Any], Any]]] = {}
    for dims, how in itertools.product((1, 2, 3), ({"scale_factor": 1.7}, {"size": 3}, {"size": 7})):
        settings: list[dict[str, Any]] = [{"mode": mode} for mode in ("nearest", "nearest-exact", "area")]
        settings += [{"mode": LINEAR[dims], "align_corners": corners} for corners in (False, True)]
        if dims == 2:
            settings += [{"mode": "bicubic", "align_corners": corners} for corners in (False, True)]
            settings += [{"mode": mode, "antialias": True} for mode in ("bilinear", "bicubic")]
        for setting in settings:
            given = how | setting
            found[f"interpolate{dims}d({given})"] = (dims, lambda x, given=given: F.interpolate(x, **given))
    return found


CASES: dict[str, tuple[int, Callable[[Any], Any]]] = {
    **_modes(),
    "interpolate to a size for each dimension": (2, lambda x: F.interpolate(x, (6, 3), mode="bilinear")),
    "interpolate by a factor for each dimension": (2, lambda x: F.interpolate(x, None, (0.5, 2.3), "bicubic")),
    "interpolate by a recomputed factor": (
        2,
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
    ),
    "Upsample": (2, nn.Upsample(scale_factor=2, mode="bilinear")),
    "UpsamplingNearest2d": (2, nn.UpsamplingNearest2d(scale_factor=2)),
    "UpsamplingBilinear2d": (2, nn.UpsamplingBilinear2d(size=(7, 6))),
    "fold of unfold": (2, lambda x: F.fold(F.unfold(x, 3, padding=1).reshape(1, 18, 20) * 1.0, (4, 5), 3, padding=1)),
    "max_unpool2d": (2, lambda x: F.max_unpool2d(x, (torch.arange(20) * 4).reshape(1, 1, 4, 5).expand(1, 2, 4, 5), 2)),
    "max_unpool1d": (1, lambda x: F.max_unpool1d(x, (torch.arange(5) * 2).expand(2, 2, 5), 2)),
    "max_unpool3d": (3, lambda x: F.max_unpool3d(x, (torch.arange(24) * 8).reshape(2, 3, 4).expand(1, 2, 2, 3, 4), 2)),
    **{
        f"grid_sample{dims}d({mode}, {padding}, {corners})": (
            dims,
            lambda x, setting=(mode, padding, corners), points=points: F.grid_sample(x, points, *setting),
        )
        for (dims, points), mode, padding, corners in itertools.product(
            ((2, POINTS), (3, POINTS_3D)), ("nearest", "bilinear"), ("zeros", "border", "reflection"), (False, True)
        )
    },
}  # fmt: skip


def _value(dims: int) -> Normal:
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(SHAPES[dims], generator=generator, dtype=torch.float64)
    return Normal(loc, torch.rand(SHAPES[dims], generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("name", [name for name in CASES if name != "fold of unfold"])
def test_resampling_squares_its_jacobian_for_the_variance(name: str) -> None:
    dims, function = CASES[name]
    x = _value(dims)
    y, plain = function(x), function(x.loc)
    jacobian = torch.autograd.functional.jacobian(function, x.loc).flatten(plain.ndim)
    assert type(y) is Normal
    assert torch.equal(y.loc, plain)
    torch.testing.assert_close(y.variance, (jacobian**2) @ x.variance.flatten(), rtol=1e-10, atol=1e-12)


def test_fold_adds_the_means_and_variances_of_overlapping_windows() -> None:
    columns = Normal(torch.ones(1, 9, 20), 0.5)
    y = nn.Fold((4, 5), 3, padding=1)(columns)
    counts = F.fold(torch.ones(1, 9, 20), (4, 5), 3, padding=1)
    assert torch.equal(y.loc, counts)
    assert torch.equal(y.variance, counts / 2)
    back = nn.Fold((4, 5), 2, stride=2, padding=(0, 1))(nn.Unfold(2, stride=2, padding=(0, 1))(_value(2)))
    torch.testing.assert_close(back.variance, _value(2).variance)  # windows that do not overlap


_COMPILED = [name for name in CASES if "size': 7" in name or "scale_factor': 1.7" in name or "grid_sample2d(b" in name]


@pytest.mark.parametrize(
    "name", ["fold of unfold", *(pytest.param(name, marks=pytest.mark.full) for name in ("max_unpool2d", *_COMPILED))]
)
def test_resampling_compiles_to_the_same_values(name: str) -> None:
    torch.compiler.reset()
    dims, function = CASES[name]
    x = _value(dims)
    compiled, eager = torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x)
    torch.testing.assert_close((compiled.loc, compiled.variance), (eager.loc, eager.variance))


@pytest.mark.parametrize(
    "name",
    [
        "interpolate2d({'size': 7, 'mode': 'bicubic', 'align_corners': False})",
        "grid_sample2d(bilinear, border, False)",
    ],
)
def test_resampling_has_right_gradients(name: str) -> None:
    dims, function = CASES[name]
    x = _value(dims)

    def moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        y = function(Normal(mean, variance))
        return y.loc, y.variance

    assert torch.autograd.gradcheck(moments, (x.loc.requires_grad_(), x.variance.requires_grad_()))


def test_variances_in_bfloat16_are_interpolated_in_float32() -> None:
    x = _value(2)
    y = F.interpolate(Normal(x.loc.bfloat16(), x.variance.bfloat16()), scale_factor=1.7, mode="bilinear")
    z = F.interpolate(x, scale_factor=1.7, mode="bilinear")
    assert y.dtype == y.variance.dtype == torch.bfloat16
    torch.testing.assert_close(y.variance.double(), z.variance, rtol=1e-2, atol=0)


def test_sampling_at_random_places_and_cubic_sampling_have_no_rule() -> None:
    x = _value(2)
    with pytest.raises(MissingRule, match="'grid_sample' with a random grid"):
        F.grid_sample(x.loc, Normal(POINTS, 1.0), align_corners=False)
    with pytest.raises(MissingRule, match="mode='bicubic'"):
        F.grid_sample(x, POINTS, "bicubic", align_corners=False)
