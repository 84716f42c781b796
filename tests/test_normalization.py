"""Normalization by random statistics, and lengths: against exact integrals, Monte Carlo and torch itself."""

import itertools
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
from momentprop.rules.reductions.dispersion import cosine_similarity

SIZES = (5, 8, 15, 16, 32, 128, 768)
SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)


def _units(n: int, scale: float, kind: str = "alike", groups: int = 4) -> Normal:
    """Groups of units with standard normal means and variances about `scale`, in float64."""
    generator = torch.Generator().manual_seed(n + int(1e4 * scale))
    mean = torch.randn(groups, n, generator=generator, dtype=torch.float64)
    variance = scale * (0.1 + 1.8 * torch.rand(groups, n, generator=generator, dtype=torch.float64))
    if kind == "equal means":
        mean = torch.ones_like(mean)
    elif kind == "one large mean":
        mean[:, 0] += n
    elif kind == "one large variance":
        variance[:, 0] *= 10 * n
    elif kind == "unequal variances":
        variance = scale * torch.exp(3 * torch.randn(groups, n, generator=generator, dtype=torch.float64))
    return Normal(mean, variance)


def _times(x: Normal, centred: bool) -> tuple[Tensor, Tensor]:
    """Points t for integrals of functions of e^{-tS}, and the step in log t."""
    center = x.loc - x.loc.mean(-1, keepdim=True) if centred else x.loc
    log = torch.linspace(-60, 60, 1500, dtype=torch.float64)
    return torch.exp(log) / (center * center + x.variance).mean(-1, keepdim=True), log[1] - log[0]


def _tilted(x: Normal, t: Tensor, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
    r"""E e^{-tS}, and mean and variance of every C under that weight, by dense linear algebra.

    With X = mean + root Z the sum is S = sum_i a_i (Z_i + b_i)^2 along the eigenvectors of its quadratic form.
    """
    n = x.shape[-1]
    form = torch.eye(n, dtype=torch.float64)
    if centred:
        form = form - 1 / n
    root = torch.diag_embed(x.variance.sqrt())
    center = (form @ x.loc[..., None])[..., 0]
    values, vectors = torch.linalg.eigh(root @ form @ root / n)
    if centred:  # nothing depends on the common part of all units
        values, vectors = values[..., 1:], vectors[..., 1:]
    mix = form @ root @ vectors
    along = (mix.mT @ center[..., None])[..., 0] / n  # a_i b_i
    a, ab = values[:, None], along[:, None]  # shape: (groups, 1, n), for times along the second dimension
    kept = 1 / (1 + 2 * t[..., None] * a)
    transform = (0.5 * kept.log() - t[..., None] * kept * ab * ab / a).sum(-1).exp()
    return transform, center[:, None] - (2 * t[..., None] * kept * ab) @ mix.mT, kept @ (mix * mix).mT


def exact(x: Normal, centred: bool, eps: float) -> tuple[Tensor, Tensor]:
    """Moments of C/sqrt(S + eps) by the trapezoidal rule in log t, which converges geometrically."""
    t, step = _times(x, centred)
    weight, mean, variance = _tilted(x, t, centred)
    weight = (weight * torch.exp(-t * eps))[..., None]
    first = (weight * (t[..., None] / math.pi).sqrt() * mean).sum(1) * step
    second = (weight * t[..., None] * (variance + mean * mean)).sum(1) * step
    return first, second - first * first


def exact_root(x: Normal, centred: bool) -> tuple[Tensor, Tensor]:
    """Moments of sqrt(S), whose mean is the integral of (1 - E e^{-tS}) / (2 sqrt(pi) t^{3/2})."""
    t, step = _times(x, centred)
    lost = 1 - _tilted(x, t, centred)[0]
    root = (lost * t**-0.5).sum(-1) * step / (2 * math.sqrt(math.pi))
    center = x.loc - x.loc.mean(-1, keepdim=True) if centred else x.loc
    share = 1 - 1 / x.shape[-1] if centred else 1.0
    return root, (center * center + share * x.variance).mean(-1) - root * root


def error(y: Normal, mean: Tensor, variance: Tensor) -> float:
    """The largest error of a deviation, relative, and of a mean, in deviations; not where all is nearly certain."""
    assert torch.isfinite(mean).all()
    sigma = variance.clamp(min=0.0).sqrt()
    counted = variance > 1e-6 * mean * mean
    errors = torch.maximum((y.stddev / sigma - 1).abs(), (y.loc - mean).abs() / sigma)
    return float(torch.where(counted, errors, 0.0).max())


def monte_carlo(function: Callable[[Tensor], Tensor], x: Normal, draws: int, rounds: int = 10) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    batches = [function(x.sample(draws, generator=generator)) for _ in range(rounds)]
    mean = torch.stack([batch.mean(0) for batch in batches]).mean(0)
    return mean, torch.stack([((batch - mean) ** 2).mean(0) for batch in batches]).mean(0)


NORMS: dict[str, tuple[bool, Callable[[Any, int, float], Any]]] = {
    "layer_norm": (True, lambda x, n, eps: F.layer_norm(x, (n,), eps=eps)),
    "rms_norm": (False, lambda x, n, eps: F.rms_norm(x, (n,), eps=eps)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("n", [3, 8, 128])
def test_the_exact_integrals_are_those_of_monte_carlo(name: str, n: int) -> None:
    centred, norm = NORMS[name]
    x, draws, rounds = _units(n, 1.0), 100_000 // n, 20
    mean, variance = exact(x, centred, 1e-5)
    drawn, drawn_variance = monte_carlo(lambda x: norm(x, n, 1e-5), x, draws, rounds)
    assert ((drawn - mean).abs() < 5 * (variance / draws / rounds).sqrt()).all()
    assert ((drawn_variance / variance - 1).abs() < 5 * math.sqrt(2 / draws / rounds)).all()


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("kind", ["alike", "equal means", "one large mean"])
@pytest.mark.parametrize("n", [n if n < 700 else pytest.param(n, marks=pytest.mark.full) for n in SIZES])
def test_moments_are_the_exact_ones(name: str, kind: str, n: int) -> None:
    centred, norm = NORMS[name]
    for scale in SCALES:
        x = _units(n, scale, kind)
        assert error(norm(x, n, 1e-5), *exact(x, centred, 1e-5)) < 2e-5, scale


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_moments_of_very_few_units_are_close(name: str, n: int) -> None:
    centred, norm = NORMS[name]
    for kind, scale in itertools.product(("alike", "equal means", "one large mean"), SCALES):
        x = _units(n, scale, kind, groups=16)
        assert error(norm(x, n, 1e-5), *exact(x, centred, 1e-5)) < (0.1 if n == 2 else 5e-4), scale


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("n", [4, 15, 16, 128])
def test_one_dominant_unit_costs_accuracy_but_not_much(name: str, n: int) -> None:
    centred, norm = NORMS[name]
    for kind, scale in itertools.product(("one large variance", "unequal variances"), SCALES):
        x = _units(n, scale, kind)
        assert error(norm(x, n, 1e-5), *exact(x, centred, 1e-5)) < (0.1 if n < 16 else 0.3), (kind, scale)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_single_precision_is_enough_at_every_scale(name: str, scale: float) -> None:
    _, norm = NORMS[name]
    for n, spread in itertools.product((8, 15, 16, 128, 768), (1e-8, 1e-4, 0.01, 1.0, 100.0, 1e6)):
        x = _units(n, spread)
        y = norm(x, n, 1e-5)
        z = norm(Normal((scale * x.loc).float(), (scale**2 * x.variance).float()), n, 1e-5 * scale**2)
        assert ((z.stddev.double() / y.stddev - 1).abs() < 1e-5).all(), (n, spread)
        allowed = 1e-5 * y.stddev + 1e-6 * (y.loc.abs() + x.loc.abs().amax() / (1 + spread) ** 0.5)
        assert ((z.loc.double() - y.loc).abs() < allowed).all(), (n, spread)


@pytest.mark.parametrize("name", NORMS)
def test_half_precision_is_computed_in_single(name: str) -> None:
    _, norm = NORMS[name]
    x = _units(64, 0.1)
    for dtype in (torch.bfloat16, torch.float16):
        y, z = norm(x, 64, 1e-5), norm(Normal(x.loc.to(dtype), x.variance.to(dtype)), 64, 1e-5)
        assert z.loc.dtype == z.variance.dtype == dtype
        torch.testing.assert_close((z.loc.double(), z.variance.double()), (y.loc, y.variance), rtol=0.05, atol=0.02)
        assert torch.equal(norm(Normal(x.loc.to(dtype), 0.0), 64, 1e-5).loc, norm(x.loc.to(dtype), 64, 1e-5))


def test_nothing_is_undefined_or_negative_in_wild_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    for n, size, spread in itertools.product((1, 2, 15, 40), (0.0, 1e-8, 1e8), (0.0, 1e-8, 1.0, 1e8)):
        for name, certain in itertools.product(NORMS, (0, n - 1)):
            mean = size * torch.randn(5, n, generator=generator)
            mean[0] = size  # equal means
            variance = (spread * torch.rand(5, n, generator=generator)) ** 2
            variance[:, :certain] = 0
            inputs = (mean.requires_grad_(), variance.requires_grad_())
            y = NORMS[name][1](Normal(*inputs), n, 1e-6)
            grads = torch.autograd.grad([y.loc.sum(), y.variance.sum()], inputs)
            assert (y.variance >= 0).all()
            assert all(torch.isfinite(part).all() for part in (y.loc, y.variance, *grads)), (n, size, spread, certain)


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
    "var of all": (lambda: lambda x: x.var(), (3, 6)),
    "var, biased": (lambda: lambda x: x.var(False), (3, 6)),
    "var with correction": (lambda: lambda x: x.var((0, -1), correction=0, keepdim=True), (3, 4, 2)),
    "std": (lambda: lambda x: x.std(1, unbiased=False, keepdim=True), (3, 6)),
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
    x = _units(5, 0.3, groups=2)
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
    x = _units(24, 1.0, groups=2)
    image = x.each(lambda part: part.reshape(2, 6, 2, 2))
    whole, per_channel = F.group_norm(image, 1), F.group_norm(image, 6)
    torch.testing.assert_close(whole.variance.flatten(1), F.layer_norm(x, (24,)).variance)
    torch.testing.assert_close(per_channel.variance, F.instance_norm(image).variance)
    by_hand = F.layer_norm(x.each(lambda part: part.reshape(2, 3, 8)), (8,))
    torch.testing.assert_close(F.group_norm(image, 3).variance.flatten(1), by_hand.variance.flatten(1))


def test_weights_and_biases_may_be_random() -> None:
    x, w, b = _units(32, 0.5, groups=1), Normal(torch.randn(32).double(), 0.3), Normal(torch.randn(32).double(), 0.2)
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
        x = _units(n, scale)
        y = F.normalize(x, dim=-1)
        mean, variance = exact(x, False, 0.0)
        assert error(y, mean / math.sqrt(n), variance / n) < (2e-5 if n > 4 else 5e-4), scale
    tiny = Normal(torch.full((1, n), 1e-14).double(), 0.0)
    torch.testing.assert_close(F.normalize(tiny, dim=-1).loc, torch.full((1, n), 0.01).double())


@pytest.mark.parametrize(("n", "tolerance"), [(8, 0.25), (32, 0.08), (128, 0.03)])
def test_vectors_of_unit_sum_are_close(n: int, tolerance: float) -> None:
    for scale in (0.01, 1.0, 10.0):
        x = _units(n, scale, groups=2)
        y = F.normalize(x, p=1, dim=-1)
        assert error(y, *monte_carlo(lambda x: F.normalize(x, p=1, dim=-1), x, 200_000 // n)) < tolerance, scale


@pytest.mark.parametrize(("alpha", "tolerance"), [(1e-4, 0.01), (1e-2, 0.03), (0.1, 0.15)])
def test_local_responses_are_close(alpha: float, tolerance: float) -> None:
    for scale in (0.1, 1.0, 10.0):
        x = _units(12, scale, groups=2)
        x = Normal(2 * x.loc[..., None], x.variance[..., None])
        norm = nn.LocalResponseNorm(5, alpha)
        mean, variance = monte_carlo(lambda x, norm=norm: norm(x.flatten(0, 1)).reshape(x.shape), x, 20_000)
        assert error(norm(x), mean, variance) < tolerance, scale


@pytest.mark.parametrize("n", [2, 3, 8, 16, 64])
@pytest.mark.parametrize("centred", [True, False])
def test_lengths_and_deviations_are_close(n: int, centred: bool) -> None:
    for kind, scale in itertools.product(("alike", "equal means"), (1e-3, *SCALES)):
        x = _units(n, scale, kind, groups=8)
        y = x.std(-1, unbiased=False) if centred else x.norm(dim=-1)
        mean, variance = exact_root(x, centred)
        if not centred:
            mean, variance = mean * math.sqrt(n), variance * n
        assert error(y, mean, variance) < (0.08 if n < 16 else 0.02), (kind, scale)


def test_variances_are_exact() -> None:
    x = _units(7, 1.0)
    y, (v, m) = torch.var(x, -1), torch.var_mean(x, -1)
    mean, variance = monte_carlo(lambda x: x.var(-1), x, 40_000)
    assert ((y.loc - mean).abs() < 5 * (variance / 4e5).sqrt()).all()
    torch.testing.assert_close(y.variance, variance, rtol=0.03, atol=0)
    assert torch.equal(v.variance, y.variance)
    torch.testing.assert_close(m.variance, x.variance.mean(-1) / 7)
    assert math.isnan(torch.var(Normal(torch.zeros(1), 1.0)).loc.item())


@pytest.mark.parametrize(("n", "tolerance"), [(32, 0.1), (256, 0.06)])
def test_angles_are_close(n: int, tolerance: float) -> None:
    for scale in (0.01, 0.1, 1.0):
        x, y = _units(n, scale), _units(n, 1.01 * scale)
        y = y.of(y.loc + x.loc, y.variance)
        pair = Normal(torch.stack([x.loc, y.loc]), torch.stack([x.variance, y.variance]))
        drawn = monte_carlo(lambda z: F.cosine_similarity(z[:, 0], z[:, 1], dim=-1), pair, 100_000 // n)
        assert error(cosine_similarity(x, y, dim=-1), *drawn) < tolerance, scale
        drawn = monte_carlo(lambda z, y=y: F.cosine_similarity(z, y.loc.expand_as(z), dim=-1), x, 100_000 // n)
        assert error(cosine_similarity(x, y.loc, dim=-1), *drawn) < tolerance, scale


def test_norms_that_are_not_known_are_refused() -> None:
    x = Normal(torch.ones(2, 3), 1.0)
    with pytest.raises(ValueError, match="p=1 or p=2"):
        F.normalize(x, p=3)
    with pytest.raises(ValueError, match="orders 1, 2 and inf"):
        torch.linalg.vector_norm(x, 3)
    with pytest.raises(ValueError, match="Frobenius"):
        torch.linalg.norm(x, 2)


def _rms_by_hand(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def _layer_norm_by_hand(x: Any) -> Any:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


@pytest.mark.parametrize("by_hand", [_rms_by_hand, _layer_norm_by_hand])
@pytest.mark.parametrize(("n", "excess"), [(32, 0.35), (128, 0.12), (768, 0.02)])
def test_norms_written_by_hand_are_too_wide_as_their_parts_are_taken_as_independent(
    by_hand: Callable[[Any], Any], n: int, excess: float
) -> None:
    centred = by_hand is _layer_norm_by_hand
    for scale in (0.01, 0.1, 1.0) if n < 700 else (0.1,):
        x = _units(n, scale, groups=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelChangeWarning)
            y = by_hand(x)
        mean, variance = exact(x, centred, 1e-5)
        ratio = y.stddev / variance.sqrt()
        assert ratio.min() > 0.99
        assert ratio.max() < 1 + excess, scale
        assert ((y.loc - mean).abs() < 0.1 * variance.sqrt()).all()
