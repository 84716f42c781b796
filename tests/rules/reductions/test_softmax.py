"""Softmax: against the race integrated with many nodes in float64, and Monte Carlo."""

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special
from torch import Tensor

from momentprop import Fitted, Logistic, Normal, functional, paper
from momentprop.rules.reductions.softmax import MOST_RACING_INDEPENDENT
from tests.rules.reductions.posteriors import METHODS, inputs, log_posterior

INVARIANT = ("race", "fast", "normal", "logistic", "centred")  # to a shift of all means


def _runner(gap: np.ndarray, std: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log E exp(-e), E[e exp(-e)] and E[e^2 exp(-e)] of e = exp(X) for X of the given means and deviation."""
    if std <= 0.6:
        z, weight = np.polynomial.hermite_e.hermegauss(80)
        e = np.exp(np.minimum(gap[:, None] + std * z, 40.0))
        weight = weight / weight.sum()
        kept = np.exp(-e)
        below, above, once, twice = kept @ weight, -np.expm1(-e) @ weight, (e * kept) @ weight, (e * e * kept) @ weight
    else:  # by parts: X + G below zero for a Gumbel variable G
        edges = np.linspace(-4.2, 45, 100)
        x, weight = np.polynomial.legendre.leggauss(4)
        half = np.diff(edges)[:, None] / 2
        noise = (edges[:-1, None] + half + half * x).ravel()
        mass = (half * weight).ravel() * np.exp(-noise - np.exp(-noise))
        b = (gap[:, None] + noise) / std
        density = np.exp(-0.5 * b * b) / math.sqrt(2 * math.pi) / std
        below, above, once = special.ndtr(-b) @ mass, special.ndtr(b) @ mass, density @ mass
        twice = once + (b * density) @ mass / std
    low = np.log(np.maximum(below, 1e-300))
    return np.where(above < 0.5, np.log1p(-np.minimum(above, 0.5)), low), once, twice


def _race(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E p and E p^2 of the softmax, exact to 1e-10."""
    std = np.sqrt(variance)
    low, high = (mean - 9 * std - 4.5).max(), (mean + 9 * std).max() + 36
    length, nodes = high - low, 1500
    growth = math.log(max(length / 40, 1.001))
    y = (np.arange(nodes) + 0.5) / nodes
    t = low + length * np.expm1(growth * y) / math.expm1(growth)
    step = length * growth * np.exp(growth * y) / math.expm1(growth) / nodes
    logs, once, twice = zip(*(_runner(m - t, s) for m, s in zip(mean, std, strict=True)), strict=True)
    others = [np.exp(np.sum(logs, 0) - own) * step for own in logs]
    return (
        np.array([(d * rest).sum() for d, rest in zip(once, others, strict=True)]),
        np.array([(d * rest).sum() for d, rest in zip(twice, others, strict=True)]),
    )


def _spread(decades: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, n: 10 ** (decades * (rng.uniform(size=n) - 0.5))


def _scaled(scale: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, n: scale * rng.uniform(0.1, 1.9, n)


def _half_certain(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(rng.uniform(size=n) < 0.5, 0.0, 10 ** (4 * (rng.uniform(size=n) - 0.5)))


VARIANCES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "0.01": _scaled(0.01), "0.1": _scaled(0.1), "1": _scaled(1.0), "3": _scaled(3.0), "10": _scaled(10.0),
    "100": _scaled(100.0), "four decades": _spread(4), "six decades": _spread(6), "half certain": _half_certain,
}  # fmt: skip


@functools.cache
def _instances(kind: str, n: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng([n, *kind.encode()])
    drawn = [(2 * rng.normal(size=n), VARIANCES[kind](rng, n)) for _ in range(3 if n < 50 else 1)]
    return [(mean, variance, *_race(mean, variance)) for mean, variance in drawn]


def _divergence(q: np.ndarray, log_q: Tensor) -> float:
    found = log_q.double().numpy()
    return float((q * (np.log(q) - found)).sum() + np.exp(found).sum() - q.sum())


def _posterior(mean: np.ndarray, variance: np.ndarray, method: str, dtype: torch.dtype = torch.float64) -> Tensor:
    x = Normal(torch.tensor(mean, dtype=dtype), torch.tensor(variance, dtype=dtype))
    return functional.class_posterior(x, method=method).logits


def test_the_oracle_agrees_with_scalar_quadrature_and_monte_carlo() -> None:
    z, weight = np.polynomial.hermite_e.hermegauss(120)
    q, _ = _race(np.array([0.7, 0.0]), np.array([1.0, 0.5]))
    exact = (special.expit(0.7 + math.sqrt(1.5) * z) * weight).sum() / weight.sum()
    assert q[0] == pytest.approx(exact, abs=1e-9)
    rng = np.random.default_rng(0)
    mean, variance = 2 * rng.normal(size=5), rng.uniform(0.0, 20.0, 5)
    draws = special.softmax(mean + np.sqrt(variance) * rng.normal(size=(200_000, 5)), 1)
    q, second = _race(mean, variance)
    assert (np.abs(draws.mean(0) - q) < 5 * draws.std(0) / math.sqrt(200_000)).all()
    assert np.abs(np.sqrt(second - q**2) / draws.std(0) - 1).max() < 0.02


@pytest.mark.parametrize("n", [2, 10, 60])
@pytest.mark.parametrize("kind", VARIANCES)
def test_the_race_has_the_stated_error(kind: str, n: int) -> None:
    for mean, variance, q, _ in _instances(kind, n):
        double, single = (_posterior(mean, variance, "race", dtype) for dtype in (torch.float64, torch.float32))
        assert abs(_divergence(q, double)) < 1e-6
        assert abs(_divergence(q, single)) < 1e-6
        likely = torch.tensor(q > 1e-6)
        assert (double - torch.tensor(q).log())[likely].abs().max() < 2e-3
        assert single.exp().sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("n", [2, 10, 60])
@pytest.mark.parametrize("kind", VARIANCES)
def test_the_moments_of_the_probabilities_have_the_stated_error(kind: str, n: int) -> None:
    for mean, variance, q, second in _instances(kind, n):
        true = np.sqrt(np.maximum(second - q * q, 0))
        seen = (true > 1e-6) & (true > 1e-4 * q)  # the oracle's own limit
        for dtype in (torch.float64, torch.float32):
            y = F.softmax(Normal(torch.tensor(mean, dtype=dtype), torch.tensor(variance, dtype=dtype)), -1)
            assert np.abs(y.stddev.double().numpy() / np.where(seen, true, 1) - 1)[seen].max(initial=0) < 0.02
            assert abs(_divergence(q, y.loc.log())) < 1e-6
            assert (y.variance >= 0).all()
            assert (y.variance <= y.loc * (1 - y.loc) + 1e-6).all()


@pytest.mark.parametrize(
    ("kind", "error"), [("0.01", 1e-6), ("0.1", 1e-4), ("1", 2e-3), ("3", 0.02), ("10", 0.05), ("100", 0.05)]
)
def test_the_fast_form_has_the_stated_error(kind: str, error: float) -> None:
    for n in (2, 10, 60):
        for mean, variance, q, _ in _instances(kind, n):
            assert _divergence(q, _posterior(mean, variance, "fast")) < (error if n > 2 else 1e-9)


def test_many_classes_are_fast_by_default_and_agree_with_the_race() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(2, MOST_RACING_INDEPENDENT + 1, generator=generator)
    x = Normal(mean, 2 * torch.rand(2, MOST_RACING_INDEPENDENT + 1, generator=generator))
    fast, race = F.log_softmax(x, -1).logits, functional.class_posterior(x, method="race").logits
    assert torch.equal(fast, functional.class_posterior(x, method="fast").logits)
    assert (race.exp() * (race - fast)).sum(-1).abs().max() < 2e-3
    few = Normal(x.loc[:, :MOST_RACING_INDEPENDENT], x.variance[:, :MOST_RACING_INDEPENDENT])
    assert torch.equal(F.log_softmax(few, -1).logits, functional.class_posterior(few, method="race").logits)


def test_wide_next_to_narrow_has_the_stated_error() -> None:
    mean, variance = torch.tensor([0.5, 0.0, -1.0, 0.3]).double(), torch.tensor([1e6, 0.0, 0.5, 4e5]).double()
    draws = Normal(mean, variance).sample(400_000, generator=torch.Generator().manual_seed(0)).softmax(-1)
    q = F.log_softmax(Normal(mean, variance), -1).loc
    assert (((q - draws.mean(0)) / draws.std(0)).abs() * math.sqrt(400_000)).max() < 15  # 0.01 at most


@pytest.mark.parametrize("method", METHODS)
def test_zero_variance_is_the_softmax(method: str) -> None:
    mean = 5 * torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    for dtype, error in ((torch.float32, 3e-7), (torch.float64, 1e-7 if method == "fast" else 1e-14)):
        x = Normal(mean.to(dtype), 0.0)
        q = functional.class_posterior(x, method=method)  # type: ignore[arg-type]
        if method == "normal":  # which does not have this limit for more than two classes
            assert (q.loc - mean.softmax(-1)).abs().max() > 0.1
            pair = functional.class_posterior(Normal(mean[:, :2], 0.0), method="normal").loc
            assert (pair - mean[:, :2].softmax(-1)).abs().max() < 0.03
        else:
            assert (q.loc - x.loc.softmax(-1)).abs().max() < error
            torch.testing.assert_close(q.logits, x.loc.log_softmax(-1), rtol=1e-5, atol=1e-5)


def test_zero_variance_gives_certainty_and_finite_gradients() -> None:
    mean = (5 * torch.randn(20, 7, generator=torch.Generator().manual_seed(0))).requires_grad_()
    variance = torch.zeros(20, 7).requires_grad_()
    y = F.softmax(Normal(mean, variance), -1)
    assert (y.loc - mean.softmax(-1)).abs().max() < 3e-7
    assert torch.equal(y.variance, torch.zeros(20, 7))
    for result in (y.loc, y.variance, *(log_posterior(method)(mean, variance) for method in METHODS)):
        grads = torch.autograd.grad(result[:, 2].sum(), (mean, variance), retain_graph=True)
        assert all(torch.isfinite(grad).all() for grad in grads)


def test_a_nearly_certain_class_varies_as_all_others_together() -> None:
    for gap in (3.0, 8.0, 12.0):
        y = F.softmax(Normal(torch.tensor([gap, 0.0]), torch.tensor([1.0, 2.0])), -1)
        assert y.stddev[0].item() == pytest.approx(y.stddev[1].item(), rel=1e-3)


def test_confident_mistakes_keep_their_loss_and_its_gradient() -> None:
    mean = torch.tensor([[0.0, -300.0, 50.0]]).requires_grad_()
    for method in ("race", "fast"):
        for variance in (0.0, 2.0):
            log_q = functional.class_posterior(Normal(mean, variance), method=method).logits  # type: ignore[arg-type]
            assert log_q[0, 1].item() == pytest.approx(-350 + variance, abs=1)
            (grad,) = torch.autograd.grad(log_q[0, 1], mean)
            torch.testing.assert_close(grad, torch.tensor([[0.0, 1.0, -1.0]]), rtol=1e-3, atol=1e-3)


def test_an_excluded_class_has_probability_zero_and_does_not_matter() -> None:
    mean, variance = torch.tensor([[1.0, -torch.inf, 2.0, 0.0]]), torch.tensor([[1.0, 0.0, 2.0, 3.0]])
    kept = [0, 2, 3]
    some = Normal(mean[:, kept], variance[:, kept])
    for method in ("race", "fast"):
        parts = mean.clone().requires_grad_(), variance.clone().requires_grad_()
        q = functional.class_posterior(Normal.of(*parts), method=method)  # type: ignore[arg-type]
        assert q.loc[0, 1] == 0
        expected = functional.class_posterior(some, method=method).logits  # type: ignore[arg-type]
        torch.testing.assert_close(q.logits[:, kept], expected, rtol=1e-4, atol=1e-5)
        assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(q.logits[0, 0], parts))
    y, z = F.softmax(Normal.of(mean, variance), -1), F.softmax(some, -1)
    torch.testing.assert_close((y.loc[:, kept], y.variance[:, kept]), (z.loc, z.variance), rtol=1e-4, atol=1e-6)
    assert y.variance[0, 1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_size_gives_finite_moments_and_gradients(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0, 1e-8, 1e-2, 1.499, 1.501, 30, 1e3, 1e8], dtype=dtype)
    a, b, c = (grid.reshape(-1, 1) for grid in torch.meshgrid(sizes, sizes, sizes, indexing="ij"))
    uniform = torch.rand(len(a), 4, generator=generator, dtype=dtype)
    mean = (a * torch.randn(len(a), 4, generator=generator, dtype=dtype)).requires_grad_()
    variance = ((uniform * torch.where(torch.arange(4) < 2, b, c)) ** 2).requires_grad_()
    y = F.softmax(Normal(mean, variance), -1)
    assert (y.variance >= 0).all()
    for result in (y.loc, y.variance, *(log_posterior(method)(mean, variance) for method in METHODS)):
        assert torch.isfinite(result).all()
        grads = torch.autograd.grad((result.clamp(min=-1e4) ** 2).sum(), (mean, variance), retain_graph=True)
        assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("method", METHODS)
def test_shifting_all_means_changes_only_the_simplified_form(method: str) -> None:
    x = Normal(torch.tensor([5.0, 5.0]).double(), torch.tensor([1.0, 10.0]).double())
    shifted = Normal(x.loc - 5, x.variance)
    q, p = (functional.class_posterior(value, method=method).loc for value in (x, shifted))  # type: ignore[arg-type]
    if method in INVARIANT:
        torch.testing.assert_close(q, p, rtol=1e-10, atol=1e-10)
    else:
        assert q[0].item() == pytest.approx(0.869, abs=1e-3)
        assert p[0].item() == pytest.approx(0.5)


def test_the_papers_forms_are_the_printed_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, v = torch.randn(3, 40, generator=generator).double(), 5 * torch.rand(3, 40, generator=generator).double()
    s = math.pi**2 / 3
    difference, total = mean[:, :, None] - mean[:, None, :], v[:, :, None] + v[:, None, :]
    wins = special.log_ndtr((difference / (total + s).sqrt()).numpy())
    normal = torch.tensor(wins).masked_fill(torch.eye(40).bool(), 0.0).sum(-1).log_softmax(-1)
    logistic = (-torch.logsumexp(-difference / (total / s + 1).sqrt(), -1)).log_softmax(-1)
    torch.testing.assert_close(paper.softmax_normal(mean, v), normal)
    torch.testing.assert_close(paper.softmax_logistic(mean, v), logistic)
    torch.testing.assert_close(paper.softmax_simplified(mean, v), (mean / (v / s + 1).sqrt()).log_softmax(-1))
    for form in (paper.softmax_normal, paper.softmax_logistic, paper.softmax_simplified, paper.softmax_centred):
        torch.testing.assert_close(form(mean.T, v.T, dim=0), form(mean, v).T)


def test_the_papers_forms_have_the_stated_error() -> None:
    worst = dict.fromkeys(METHODS, 0.0)
    for n in (10, 60):
        for mean, variance, q, _ in _instances("1", n):
            for method in METHODS:
                worst[method] = max(worst[method], _divergence(q, _posterior(mean, variance, method)))
    assert worst["race"] < worst["fast"] < worst["centred"] < worst["simplified"] < 0.5 < worst["normal"]
    assert worst["logistic"] < 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", [Normal, Logistic, Fitted])
def test_half_precision_is_computed_in_single(family: type[Normal], dtype: torch.dtype) -> None:
    mean, variance = (part.detach().to(dtype) for part in inputs(3, 4))
    half, single = F.log_softmax(family(mean, variance), -1), F.log_softmax(family(mean.float(), variance.float()), -1)
    torch.testing.assert_close(half.logits, single.logits.to(dtype))
    y, z = F.softmax(family(mean, variance), -1), F.softmax(family(mean.float(), variance.float()), -1)
    torch.testing.assert_close(y.variance, z.variance.to(dtype))


def test_a_dimension_that_is_not_given_is_torchs() -> None:
    for shape, dim in (((4,), 0), ((4, 3), 1), ((2, 4, 3), 0), ((2, 4, 3, 2), 1)):
        x = Normal(torch.zeros(shape), 1.0)
        torch.testing.assert_close(F.softmax(x).loc, torch.full(shape, 1 / shape[dim]))
        assert F.log_softmax(x).shape[-1] == shape[dim]
