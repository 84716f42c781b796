"""Losses: expected risks against quadrature, likelihoods against their definition, and torch's options."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Categorical, Normal
from momentprop.dispatch import MissingRule

pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss:UserWarning")  # of kl_div

GENERATOR = torch.Generator().manual_seed(0)
MEAN = torch.randn(6, 5, generator=GENERATOR, dtype=torch.float64) * 2
VARIANCE = torch.rand(6, 5, generator=GENERATOR, dtype=torch.float64) * 3
TARGET = torch.randn(6, 5, generator=GENERATOR, dtype=torch.float64)
WEIGHT = torch.rand(6, 5, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(5, (6,), generator=GENERATOR)
SIGNS = torch.where(WEIGHT > 0.5, 1.0, -1.0).double()
PROBABILITIES = torch.rand(6, 5, generator=GENERATOR, dtype=torch.float64)
CLASS_WEIGHT = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0], dtype=torch.float64)

# Losses of one element, as functions of the input and the target, whose expectation the rule gives.
RISKS: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    "mse_loss": (F.mse_loss, TARGET),
    "l1_loss": (F.l1_loss, TARGET),
    "smooth_l1_loss": (lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.7, **k), TARGET),
    "smooth_l1_loss of no width": (lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.0, **k), TARGET),
    "huber_loss": (lambda x, y, **k: F.huber_loss(x, y, delta=1.3, **k), TARGET),
    "poisson_nll_loss": (lambda x, y, **k: F.poisson_nll_loss(x, y, full=True, **k), (TARGET.abs() * 3).round()),
    "kl_div": (F.kl_div, PROBABILITIES),
    "kl_div of logarithms": (lambda x, y, **k: F.kl_div(x, y, log_target=True, **k), TARGET),
    "hinge_embedding_loss": (F.hinge_embedding_loss, SIGNS),
}

# Losses whose value is -log of an expected probability.
LIKELIHOODS: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, (SIGNS + 1) / 2),
    "soft_margin_loss": (F.soft_margin_loss, SIGNS),
}


def _expectation(f: Callable[[Tensor], Tensor], target: Tensor, place: tuple[int, int]) -> float:
    """The mean of f over the distribution of one element, by Gauss-Legendre quadrature between the kinks."""
    mean, std = float(MEAN[place]), math.sqrt(float(VARIANCE[place]))
    kinks = [float(target[place]) + shift for shift in (-1.3, -0.7, 0, 0.7, 1.3)] + [1.0, -1.0]
    grid = np.linspace(mean - 12 * std, mean + 12 * std, 60)
    points = np.sort(np.concatenate([grid, np.clip(kinks, grid[0], grid[-1])]))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(points)[:, None] / 2
    x = (points[:-1, None] + half + half * nodes).ravel()
    density = np.exp(-(((x - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))
    return float(np.sum(f(torch.tensor(x)).numpy() * density * (half * weights).ravel()))


ELEMENTS = [(0, 0), (1, 3), (4, 2)]


@pytest.mark.parametrize("name", RISKS)
def test_a_risk_is_the_expectation_of_the_plain_loss(name: str) -> None:
    loss, target = RISKS[name]
    ours = loss(Normal(MEAN, VARIANCE), target, reduction="none")
    assert type(ours) is Tensor
    for place in ELEMENTS:

        def plain(x: Tensor, y: Tensor = target[place]) -> Tensor:
            return loss(x, y.expand_as(x), reduction="none")

        assert float(ours[place]) == pytest.approx(_expectation(plain, target, place), rel=1e-10)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_likelihood_is_that_of_the_expected_probability(name: str) -> None:
    loss, target = LIKELIHOODS[name]
    ours = loss(Normal(MEAN, VARIANCE), target, reduction="none")
    for place in ELEMENTS:

        def probability(x: Tensor, y: Tensor = target[place]) -> Tensor:
            return torch.exp(-loss(x, y.expand_as(x), reduction="none"))

        assert float(ours[place]) == pytest.approx(-math.log(_expectation(probability, target, place)), rel=3e-7)


# Losses with torch's options, as functions of the input and of `reduction`.
LISTS = torch.tensor([[3, 0, -1, 1, 1]] * 6)
WITH_OPTIONS: dict[str, Callable[..., Tensor]] = {
    "mse_loss, weight": lambda x, **k: F.mse_loss(x, TARGET, weight=WEIGHT, **k),
    "huber_loss, weight": lambda x, **k: F.huber_loss(x, TARGET, weight=WEIGHT, **k),
    "bce, weight": lambda x, **k: F.binary_cross_entropy_with_logits(x, PROBABILITIES, WEIGHT, **k),
    "bce, pos_weight": lambda x, **k: F.binary_cross_entropy_with_logits(
        x, PROBABILITIES, pos_weight=CLASS_WEIGHT, **k
    ),
    "bce of sigmoid": lambda x, **k: F.binary_cross_entropy(torch.sigmoid(x), PROBABILITIES, WEIGHT, **k),
    "multilabel_soft_margin": lambda x, **k: F.multilabel_soft_margin_loss(x, PROBABILITIES.round(), CLASS_WEIGHT, **k),
    "poisson, rate": lambda x, **k: F.poisson_nll_loss(x + 9, TARGET.abs(), log_input=False, **k),
    "gaussian": lambda x, **k: F.gaussian_nll_loss(x, TARGET, WEIGHT, full=True, **k),
    "gaussian, one var each": lambda x, **k: F.gaussian_nll_loss(x, TARGET, WEIGHT[:, 0], **k),
    "gaussian, var below eps": lambda x, **k: F.gaussian_nll_loss(x, TARGET, WEIGHT, eps=0.4, **k),
    "multi_margin": lambda x, **k: F.multi_margin_loss(x, LABELS, weight=CLASS_WEIGHT, **k),
    "multi_margin, squared": lambda x, **k: F.multi_margin_loss(x, LABELS, p=2, margin=0.5, **k),
    "multilabel_margin": lambda x, **k: F.multilabel_margin_loss(x, LISTS, **k),
    "margin_ranking": lambda x, **k: F.margin_ranking_loss(x, TARGET, SIGNS, 0.3, **k),
    "cross_entropy": lambda x, **k: F.cross_entropy(x, LABELS, CLASS_WEIGHT, ignore_index=1, label_smoothing=0.1, **k),
    "cross_entropy of probabilities": lambda x, **k: F.cross_entropy(x, PROBABILITIES, CLASS_WEIGHT, **k),
    "cross_entropy of images": lambda x, **k: F.cross_entropy(
        x.reshape(2, 3, 5).mT, LABELS.reshape(2, 3), CLASS_WEIGHT, **k
    ),
    "nll_loss": lambda x, **k: F.nll_loss(F.log_softmax(x, 1), LABELS, CLASS_WEIGHT, ignore_index=1, **k),
    "kl_div of a posterior": lambda x, **k: F.kl_div(F.log_softmax(x, 1), PROBABILITIES, **k),
}


def _options() -> dict[str, Callable[[Any], Tensor]]:
    """All losses with every reduction, and a few that have only one."""
    plain = {name: partial(_of_input, loss, target) for name, (loss, target) in (RISKS | LIKELIHOODS).items()}
    return {
        f"{name}, {reduction}": partial(loss, reduction=reduction)
        for name, loss in (plain | WITH_OPTIONS).items()
        for reduction in ("none", "mean", "sum")
    } | {
        "kl_div, batchmean": lambda x: F.kl_div(F.log_softmax(x, 1), PROBABILITIES, reduction="batchmean"),
        "multi_margin of one row": lambda x: F.multi_margin_loss(x[0], LABELS[0]),
        "multilabel_margin of one row": lambda x: F.multilabel_margin_loss(x[0], torch.tensor([2, 4, -1, 0, 0])),
        "gaussian, a number": lambda x: F.gaussian_nll_loss(x, TARGET, 0.3),
        "ctc": lambda x: F.ctc_loss(
            F.log_softmax(x.reshape(6, 1, 5), -1), torch.tensor([[1, 3]]), torch.tensor([6]), torch.tensor([2])
        ),
    }


def _of_input(loss: Callable[..., Tensor], target: Tensor, x: Any, **kind: str) -> Tensor:
    return loss(x, target, **kind)


OPTIONS = _options()
_POSTERIORS = ("cross_entropy", "nll_loss, none", "posterior", "below eps")


@pytest.mark.parametrize("name", OPTIONS)
def test_without_variance_a_loss_is_plain_with_finite_gradients(name: str) -> None:
    loss = OPTIONS[name]
    mean, variance = MEAN.clone().requires_grad_(), torch.zeros_like(MEAN).requires_grad_()
    ours = loss(Normal(mean, variance))
    assert type(ours) is Tensor
    torch.testing.assert_close(ours, loss(MEAN), rtol=1e-7, atol=1e-9)
    grads = torch.autograd.grad(ours.sum(), (mean, variance), materialize_grads=True)
    assert all(grad.isfinite().all() for grad in grads)


# Those of the class posterior are tested with it; a variance below `eps` has the gradient of torch, not of the clamp.
_DIFFERENTIATED = [name for name in OPTIONS if "none" in name and not any(part in name for part in _POSTERIORS)]


@pytest.mark.parametrize("name", _DIFFERENTIATED)
def test_the_gradients_of_a_loss_are_right(name: str) -> None:
    inputs = (MEAN.clone().requires_grad_(), (VARIANCE / 100).requires_grad_())
    assert torch.autograd.gradcheck(lambda m, v: OPTIONS[name](Normal(m, v)), inputs)


def test_a_variance_below_eps_has_a_gradient_as_in_torch() -> None:
    x = Normal(MEAN, torch.zeros_like(MEAN).requires_grad_())
    var = WEIGHT.clone().requires_grad_()
    ours = torch.autograd.grad(F.gaussian_nll_loss(x, TARGET, var, eps=0.4), (var, x.variance))
    (plain,) = torch.autograd.grad(F.gaussian_nll_loss(MEAN, TARGET, var, eps=0.4), var)
    torch.testing.assert_close(ours, (plain, plain))


@pytest.mark.parametrize("name", [name for name in OPTIONS if "mean" in name and "entropy" not in name])
@pytest.mark.full
def test_a_loss_compiles_to_the_same_value(name: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(OPTIONS[name], fullgraph=True, backend="aot_eager")
    x = Normal(MEAN, VARIANCE / 10)  # the logarithm of a Poisson rate warns of larger ones
    torch.testing.assert_close(compiled(x), OPTIONS[name](x))


def test_a_gaussian_loss_compiles_though_torchs_reads_its_data() -> None:
    torch.compiler.reset()
    loss = OPTIONS["gaussian, mean"]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(Normal(MEAN, VARIANCE))
    torch.testing.assert_close(compiled, loss(Normal(MEAN, VARIANCE)))


def test_the_squared_error_adds_the_variances_of_input_and_target() -> None:
    x = Normal(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25]))
    assert F.mse_loss(x, torch.zeros(2), reduction="none").tolist() == [1.5, 4.25]
    assert F.mse_loss(x, Normal(torch.zeros(2), 1.0), reduction="none").tolist() == [2.5, 5.25]
    assert F.mse_loss(torch.zeros(2), x, reduction="sum").item() == 5.75
    assert F.mse_loss(x, x).item() == 0
    with pytest.warns(UserWarning, match="reduction='sum'"):
        assert torch.nn.MSELoss(size_average=False)(x, torch.zeros(2)).item() == 5.75


def test_the_gaussian_likelihood_adds_the_variances() -> None:
    x = Normal(MEAN, VARIANCE)
    plain = F.gaussian_nll_loss(MEAN, TARGET, VARIANCE + WEIGHT + 0.5)
    torch.testing.assert_close(F.gaussian_nll_loss(x, Normal(TARGET, 0.5), WEIGHT), plain)
    torch.testing.assert_close(F.gaussian_nll_loss(x, Normal(TARGET, 0.5), Normal(WEIGHT, 9.0)), plain)
    with pytest.raises(ValueError, match=r"`var` of `gaussian_nll_loss` must not .*has negative elements"):
        F.gaussian_nll_loss(x, TARGET, -WEIGHT)
    with pytest.raises(ValueError, match="`var` of `gaussian_nll_loss` must not be negative, but is -"):
        F.gaussian_nll_loss(x, TARGET, -1.0)


def test_the_logistic_likelihood_is_accurate_over_a_wide_range() -> None:
    z = torch.linspace(-60, 60, 48001, dtype=torch.float64)
    mean = torch.tensor([-1000.0, -200, -50, -20, -8, -3, -1, -0.1, 0, 0.1, 1, 3, 8, 20], dtype=torch.float64)
    variance = torch.tensor([1e-3, 0.01, 0.1, 0.5, 1, 2.5, 4, 10, 30, 100, 300, 900], dtype=torch.float64)
    mean, variance = (part.flatten() for part in torch.meshgrid(mean, variance, indexing="ij"))
    log_density = -z * z / 2 - math.log(2 * math.pi) / 2 + math.log(float(z[1] - z[0]))
    true = -torch.logsumexp(log_density + F.logsigmoid(mean[:, None] + variance.sqrt()[:, None] * z), -1)
    for dtype in (torch.float32, torch.float64):
        x = Normal(mean.to(dtype), variance.to(dtype))
        ours = F.binary_cross_entropy_with_logits(x, torch.ones_like(x.loc), reduction="none").double()
        assert ((ours - true).abs() / true.clamp(min=1)).max() < 3e-7


def test_a_logit_far_out_has_a_finite_loss_in_float32() -> None:
    x = Normal(torch.tensor([-200.0, -200.0, 300.0]), torch.tensor([0.0, 1.0, 4.0]))
    y = torch.tensor([1.0, 1.0, 0.0])
    loss = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    torch.testing.assert_close(loss, torch.tensor([200.0, 199.5, 298.0]))


def test_divergences_of_images_and_random_targets_are_refused() -> None:
    posterior = F.log_softmax(Normal(torch.zeros(2, 5, 3), 1.0), 1)
    assert isinstance(posterior, Categorical)
    with pytest.raises(MissingRule, match=r"'kl_div' with 3 dimensions at top level: write it with `posterior.logits`"):
        F.kl_div(posterior, torch.ones(2, 3, 5) / 5)
    with pytest.raises(MissingRule, match="'binary_cross_entropy' with a random `target`"):
        F.binary_cross_entropy(Normal(PROBABILITIES, 0.1), Normal(PROBABILITIES, 0.1))


def test_invalid_options_are_refused() -> None:
    x = Normal(MEAN, VARIANCE)
    with pytest.raises(ValueError, match="'average' is not a valid value for reduction; choose one of none, mean, sum"):
        F.mse_loss(x, TARGET, reduction="average")
    with pytest.raises(ValueError, match="takes p=1 or p=2, but p=3"):
        F.multi_margin_loss(x, LABELS, p=3)
    with pytest.raises(ValueError, match="margin must be greater than 0"):
        F.triplet_margin_loss(x, Normal(TARGET, 0.1), Normal(WEIGHT, 0.1), margin=-1.0)


def test_distances_and_cosines_without_variance_are_the_plain_ones() -> None:
    for loss in (
        lambda x: F.pairwise_distance(x, TARGET, keepdim=True),
        lambda x: F.cosine_similarity(x, TARGET),
    ):
        torch.testing.assert_close(loss(Normal(MEAN, 0.0)).loc, loss(MEAN))
    for loss in (
        lambda x: F.cosine_embedding_loss(x, TARGET, SIGNS[:, 0], 0.1),
        lambda x: F.triplet_margin_loss(x, TARGET, WEIGHT, swap=True),
        lambda x: F.triplet_margin_with_distance_loss(x, TARGET, WEIGHT),
    ):
        torch.testing.assert_close(loss(Normal(MEAN, 0.0)), loss(MEAN))
    same = F.cosine_similarity(x := Normal(MEAN, VARIANCE), x)
    assert torch.equal(same.loc, torch.ones(6, dtype=torch.float64))
    assert not same.variance.any()


def test_arguments_that_torch_refuses_are_refused() -> None:
    x = Normal(torch.zeros(3), 1.0)
    with pytest.raises(ValueError, match="positive delta"):
        F.huber_loss(x, torch.zeros(3), delta=0.0)
    with pytest.raises(ValueError, match="takes a batch of inputs"):
        F.linear_cross_entropy(x, torch.zeros(2, 4, 3), torch.zeros(4, dtype=torch.long))


def test_multi_margin_loss_of_one_example_takes_a_target_of_one_element() -> None:
    x = torch.tensor([0.1, 0.5, -0.2])
    found = F.multi_margin_loss(Normal(x, 0.0), torch.tensor([1]))
    torch.testing.assert_close(found, F.multi_margin_loss(x, torch.tensor([1])))
