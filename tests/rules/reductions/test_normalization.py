"""Layers and functions that normalize: what torch does, derivatives, groups, parameters."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Mean, Normal, Sample
from momentprop.lognormal_model import ModelChangeWarning
from tests.rules.reductions.integrals import SCALES, error, exact, monte_carlo, units_of

# Modules and functions of a value, each with a shape that it takes
LAYERS: dict[str, tuple[Callable[[], Callable[[Any], Any]], tuple[int, ...]]] = {
    "LayerNorm": (lambda: nn.LayerNorm(7), (3, 7)),
    "LayerNorm over two dimensions": (lambda: nn.LayerNorm((5, 7)), (3, 5, 7)),
    "LayerNorm without bias": (lambda: nn.LayerNorm(7, bias=False), (3, 7)),
    "LayerNorm without parameters": (lambda: nn.LayerNorm(7, elementwise_affine=False), (7,)),
    "RMSNorm": (lambda: nn.RMSNorm(7), (3, 7)),
    "RMSNorm with epsilon": (lambda: nn.RMSNorm((5, 7), eps=0.1, elementwise_affine=False), (3, 5, 7)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 6), (3, 6, 4, 2)),
    "GroupNorm without positions": (lambda: nn.GroupNorm(2, 8, affine=False), (3, 8)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3), (2, 3, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 5)),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(3, affine=True, track_running_stats=True), (2, 3, 2, 3, 2)),
    "InstanceNorm2d in eval mode": (lambda: nn.InstanceNorm2d(3, track_running_stats=True).eval(), (2, 3, 4, 5)),
    "InstanceNorm2d of one image": (lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 5)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3, 0.1, 0.6, 2.0), (2, 5, 4)),
    "LocalResponseNorm of even size": (lambda: nn.LocalResponseNorm(2), (2, 5, 3, 4)),
    "normalize": (lambda: lambda x: F.normalize(x), (3, 6, 2)),
    "normalize by the sum": (lambda: lambda x: F.normalize(x, p=1, dim=-1), (3, 6)),
    "var": (lambda: lambda x: torch.var(x, -1), (3, 6)),
    "var of all": (lambda: torch.var, (3, 6)),
    "var, biased": (lambda: lambda x: torch.var(x, False), (3, 6)),
    "var with correction": (lambda: lambda x: torch.var(x, (0, -1), correction=0, keepdim=True), (3, 4, 2)),
    "std": (lambda: lambda x: torch.std(x, 1, unbiased=False, keepdim=True), (3, 6)),
    "std of all": (lambda: lambda x: torch.std(x), (3, 6)),
    "var_mean": (lambda: lambda x: torch.var_mean(x, 1, keepdim=True)[0], (3, 6)),
    "std_mean": (lambda: lambda x: torch.std_mean(x, (0, 1))[0], (3, 6)),
    "norm": (lambda: lambda x: x.norm(dim=-1, keepdim=True), (3, 6)),
    "norm of all": (lambda: lambda x: torch.norm(x), (3, 6)),
    "norm, p=1": (lambda: lambda x: torch.norm(x, 1, -1), (3, 6)),
    "linalg.norm": (lambda: lambda x: torch.linalg.norm(x, dim=(-2, -1)), (3, 4, 2)),
    "linalg.vector_norm": (lambda: lambda x: torch.linalg.vector_norm(x, dim=(0, 2)), (3, 4, 2)),
    "linalg.vector_norm, largest": (lambda: lambda x: torch.linalg.vector_norm(x, math.inf, dim=-1), (3, 4)),
}


def _layer(name: str, dtype: torch.dtype = torch.float64) -> tuple[Any, Tensor, Tensor]:
    """A layer with random parameters and statistics, and the mean and variance of a value for it."""
    make, shape = LAYERS[name]
    layer = make()
    torch.manual_seed(0)
    if isinstance(layer, nn.Module):
        layer = layer.to(dtype)
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():
                nn.init.uniform_(tensor, 0.5, 1.5)
    return layer, torch.randn(shape, dtype=dtype), 0.1 + torch.rand(shape, dtype=dtype)


@pytest.mark.parametrize("name", LAYERS)
def test_a_certain_value_is_treated_as_torch_does(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        layer, mean, _ = _layer(name, dtype)
        y = layer(Normal(mean, 0.0))
        torch.testing.assert_close(y.loc, layer(mean))
        if "Norm" in name and "Local" not in name:
            assert torch.equal(y.loc, layer(mean))
        assert not y.variance.any()


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_at_zero_variance_are_those_of_torch(name: str) -> None:
    layer, mean, _ = _layer(name)
    mean.requires_grad_()
    variance = torch.zeros_like(mean, requires_grad=True)
    y = layer(Normal(mean, variance))
    direction = torch.randn_like(y.loc)
    (grad,) = torch.autograd.grad(y.loc, mean, direction, retain_graph=True)
    (wanted,) = torch.autograd.grad(layer(mean), mean, direction)
    torch.testing.assert_close(grad, wanted)
    (by_variance,) = torch.autograd.grad(y.loc, variance, direction, retain_graph=True, materialize_grads=True)
    (of_variance,) = torch.autograd.grad(y.variance.sum(), variance)
    assert torch.isfinite(by_variance).all()
    assert (of_variance > -1e-12).all()


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_are_right(name: str) -> None:
    layer, mean, variance = _layer(name)
    parameters = dict(layer.named_parameters()) if isinstance(layer, nn.Module) else {}
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        layer.momentum = 0.0  # finite differences must find the statistics unchanged

    def moments(mean: Tensor, variance: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        if not values:
            y = layer(Normal(mean, variance))
        else:
            y = torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), (Normal(mean, variance),))
        return y.loc, y.variance

    inputs = [tensor.detach().clone().requires_grad_() for tensor in (mean, variance, *parameters.values())]
    assert torch.autograd.gradcheck(moments, inputs, fast_mode=True)


def test_second_derivatives_are_right() -> None:
    x = units_of(5, 0.3, groups=2)
    inputs = (x.loc.requires_grad_(), x.variance.requires_grad_())
    for centred in (True, False):
        kernel = lambda mean, variance: F.layer_norm(Normal(mean, variance), (5,)).variance  # noqa: E731
        if not centred:
            kernel = lambda mean, variance: F.rms_norm(Normal(mean, variance), (5,)).variance  # noqa: E731
        assert torch.autograd.gradgradcheck(kernel, inputs)


QUICK = ("LayerNorm", "var with correction")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in LAYERS]
)
def test_compiled_layers_are_the_same(name: str) -> None:
    torch.compiler.reset()
    layer, mean, variance = _layer(name)
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        layer.momentum = 0.0
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for function in (layer, compiled):
        inputs = [part.clone().requires_grad_() for part in (mean, variance)]
        y = function(Normal(*inputs))
        results.append((y.loc, y.variance, *torch.autograd.grad((y.loc.sum() + 2 * y.variance.sum()), inputs)))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("name", LAYERS)
def test_means_and_samples_are_treated_as_tensors(name: str) -> None:
    layer, mean, _ = _layer(name)
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        layer.momentum = 0.0
    for kind in (Mean, Sample):
        y = layer(kind(mean))
        assert isinstance(y, kind)
        assert torch.equal(y.loc, layer(mean))


def test_groups_are_laid_out_as_by_torch() -> None:
    x = units_of(24, 1.0, groups=2)
    image = x.each(lambda part: part.reshape(2, 6, 2, 2))
    whole, per_channel = F.group_norm(image, 1), F.group_norm(image, 6)
    torch.testing.assert_close(whole.variance.flatten(1), F.layer_norm(x, (24,)).variance)
    torch.testing.assert_close(per_channel.variance, F.instance_norm(image).variance)
    by_hand = F.layer_norm(x.each(lambda part: part.reshape(2, 3, 8)), (8,))
    torch.testing.assert_close(F.group_norm(image, 3).variance.flatten(1), by_hand.variance.flatten(1))


def test_weights_and_biases_may_be_random() -> None:
    x, w, b = units_of(32, 0.5, groups=1), Normal(torch.randn(32).double(), 0.3), Normal(torch.randn(32).double(), 0.2)
    plain = F.layer_norm(x, (32,))
    y = F.layer_norm(x, (32,), w, b)
    torch.testing.assert_close(y.loc, plain.loc * w.loc + b.loc)
    second = (plain.variance + plain.loc**2) * (w.variance + w.loc**2)
    torch.testing.assert_close(y.variance, second - (plain.loc * w.loc) ** 2 + b.variance)
    z = F.layer_norm(x.loc, (32,), w)
    certain = F.layer_norm(x.loc, (32,))
    torch.testing.assert_close((z.loc, z.variance), (certain * w.loc, certain**2 * w.variance))
    scale, shift = Normal(torch.ones(4).double(), 0.1), Normal(torch.zeros(4).double(), 0.1)
    image = x.each(lambda part: part.reshape(1, 4, 8))
    for norm in (F.group_norm(image, 2, scale, shift), F.instance_norm(image, weight=scale, bias=shift)):
        assert (norm.variance > 0.1).all()


def test_instance_statistics_are_tracked_by_expectation() -> None:
    layer, mean, variance = _layer("InstanceNorm3d")
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    layer(Normal(mean, variance))
    drawn = Normal(mean, variance).sample(20_000, generator=torch.Generator().manual_seed(0)).flatten(3)
    wanted = {"running_mean": drawn.mean((0, 1, 3)), "running_var": drawn.var(-1).mean((0, 1))}
    for name, statistic in wanted.items():
        moved = getattr(layer, name)
        torch.testing.assert_close(moved, 0.9 * before[name] + 0.1 * statistic, rtol=0, atol=5e-3)
    layer.eval()
    y = layer(Normal(mean, variance))
    torch.testing.assert_close(y.loc, layer(mean))
    scale = layer.weight / (layer.running_var + layer.eps).sqrt()
    torch.testing.assert_close(y.variance, variance * scale.reshape(-1, 1, 1, 1) ** 2)


def test_one_position_has_no_instance_statistics() -> None:
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        F.instance_norm(Normal(torch.zeros(2, 3, 1), 1.0))


def test_a_wrong_shape_is_told_by_torch() -> None:
    with pytest.raises(RuntimeError, match="normalized_shape"):
        nn.LayerNorm(5)(Normal(torch.zeros(2, 4), 1.0))


@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_unit_vectors_are_those_of_the_root_mean_square(n: int) -> None:
    for scale in SCALES:
        x = units_of(n, scale)
        y = F.normalize(x, dim=-1)
        mean, variance = exact(x, False, 0.0)
        assert error(y, mean / math.sqrt(n), variance / n) < (2e-5 if n > 4 else 5e-4), scale
    tiny = Normal(torch.full((1, n), 1e-14).double(), 0.0)
    torch.testing.assert_close(F.normalize(tiny, dim=-1).loc, torch.full((1, n), 0.01).double())


@pytest.mark.parametrize(("n", "tolerance"), [(8, 0.25), (32, 0.08), (128, 0.03)])
def test_vectors_of_unit_sum_are_close(n: int, tolerance: float) -> None:
    for scale in (0.01, 1.0, 10.0):
        x = units_of(n, scale, groups=2)
        y = F.normalize(x, p=1, dim=-1)
        assert error(y, *monte_carlo(lambda x: F.normalize(x, p=1, dim=-1), x, 200_000 // n)) < tolerance, scale


@pytest.mark.parametrize(("alpha", "tolerance"), [(1e-4, 0.01), (1e-2, 0.03), (0.1, 0.15)])
def test_local_responses_are_close(alpha: float, tolerance: float) -> None:
    for scale in (0.1, 1.0, 10.0):
        x = units_of(12, scale, groups=2)
        x = Normal(2 * x.loc[..., None], x.variance[..., None])
        norm = nn.LocalResponseNorm(5, alpha)
        mean, variance = monte_carlo(lambda x, norm=norm: norm(x.flatten(0, 1)).reshape(x.shape), x, 20_000)
        assert error(norm(x), mean, variance) < tolerance, scale


def _rms_by_hand(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def _layer_norm_by_hand(x: Any) -> Any:
    return (x - x.mean(-1, keepdim=True)) / (torch.var(x, -1, keepdim=True, unbiased=False) + 1e-5).sqrt()


@pytest.mark.parametrize("by_hand", [_rms_by_hand, _layer_norm_by_hand])
@pytest.mark.parametrize(("n", "excess"), [(32, 0.35), (128, 0.12), (768, 0.02)])
def test_norms_by_hand_are_too_wide_as_parts_count_as_independent(
    by_hand: Callable[[Any], Any], n: int, excess: float
) -> None:
    centred = by_hand is _layer_norm_by_hand
    for scale in (0.01, 0.1, 1.0) if n < 700 else (0.1,):
        x = units_of(n, scale, groups=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelChangeWarning)
            y = by_hand(x)
        mean, variance = exact(x, centred, 1e-5)
        ratio = y.stddev / variance.sqrt()
        assert ratio.min() > 0.99
        assert ratio.max() < 1 + excess, scale
        assert ((y.loc - mean).abs() < 0.1 * variance.sqrt()).all()
