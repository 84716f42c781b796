"""The class posterior of jointly normal logits, against algebra, product quadrature, the race and draws."""

import functools
import math

import pytest
import torch
from torch import Tensor

from momentprop import Normal, functional
from momentprop.kernels.joint_posterior import FEW, LEAST, MANY, _enough, _root, log_posterior, posterior
from tests.stack.compiling import compile_whole

ALLOWED = 1e-5  # in KL divergence
DEVIATIONS = [0.1, 1.0, 3.0, 10.0]


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _covariance(seed: int, classes: int, rank: int, deviation: float) -> Tensor:
    factors = _normal(seed, classes, rank)
    found = factors @ factors.T
    return found * (deviation**2 / found.diagonal().mean())


def _by_grid(loc: Tensor, covariance: Tensor, rank: int) -> Tensor:
    """The posterior by the trapezoidal rule over the axes of a covariance of low rank; exponentially accurate."""
    values, axes = torch.linalg.eigh(covariance)
    root = (axes * values.clamp(min=0).sqrt())[:, -rank:]
    step = min(0.2, 1.5 / float(root.abs().sum(0).max()))
    line = torch.arange(-math.ceil(6.5 / step), math.ceil(6.5 / step) + 1, dtype=torch.float64) * step
    total, mass = torch.zeros_like(loc), 0.0
    for first in line:
        rest = torch.cartesian_prod(*[line] * (rank - 1)).reshape(-1, rank - 1) if rank > 1 else line.new_zeros(1, 0)
        u = torch.cat([first.expand(len(rest), 1), rest], 1)
        weight = torch.exp(-0.5 * (u * u).sum(-1))
        total += weight @ torch.softmax(loc + u @ root.T, -1)
        mass += float(weight.sum())
    return total / mass


def _divergence(truth: Tensor, log_q: Tensor) -> Tensor:
    return torch.special.xlogy(truth, truth).sum(-1) - (truth * log_q.double()).sum(-1)


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("classes", "rank"),
    [(2, 1), (2, 2), (3, 2), (3, 3), (10, 1), (10, 2), pytest.param(128, 1, marks=pytest.mark.full)],
)
def test_quadrature_gives_the_same(classes, rank, deviation, dtype):
    for tied in (True, False):
        loc = torch.zeros(classes, dtype=torch.float64) if tied else 2 * _normal(3, classes)
        covariance = _covariance(classes + rank, classes, rank, deviation)
        if classes == rank:  # the differences have one rank less
            centre = torch.eye(classes, dtype=torch.float64) - 1 / classes
            truth = _by_grid(loc, centre @ covariance @ centre, rank - 1)
        else:
            truth = _by_grid(loc, covariance, rank)
        found = log_posterior(loc.to(dtype), covariance.to(dtype))
        assert _divergence(truth, found) < ALLOWED
        assert abs(float(found.double().exp().sum()) - 1) < (1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("classes", [3, 10])
def test_independent_logits_give_what_the_race_gives(classes, deviation):
    variance = deviation**2 * torch.rand(4, classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loc = 2 * _normal(0, 4, classes)
    race = functional.class_posterior(Normal(loc, variance), method="race")
    found = functional.joint_posterior(loc, torch.diag_embed(variance))
    assert (_divergence(race.loc, found.logits) < ALLOWED).all()


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_correlations_near_one(deviation):
    deviations = deviation * (1 + 0.02 * _normal(1, 3))
    covariance = deviations[:, None] * deviations * (0.999 + 0.001 * torch.eye(3))
    centre = torch.eye(3, dtype=torch.float64) - 1 / 3
    loc = torch.tensor([0.3, 0.0, 0.01], dtype=torch.float64)
    assert _divergence(_by_grid(loc, centre @ covariance @ centre, 2), log_posterior(loc, covariance)) < ALLOWED


@pytest.mark.full
@pytest.mark.parametrize("deviation", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("rank", [3, 5, 10, 30])
def test_draws_give_the_same(rank, deviation):
    loc, covariance = 2 * _normal(7, 10), _covariance(rank, 10, rank, deviation)
    values, axes = torch.linalg.eigh(covariance)
    root = (axes * values.clamp(min=0).sqrt()).float()
    generator, total, draws = torch.Generator().manual_seed(0), torch.zeros(10, dtype=torch.float64), 0
    for _ in range(40):
        z = torch.randn(1 << 19, 10, generator=generator) @ root.T + loc.float()
        total += torch.softmax(z, -1).sum(0, dtype=torch.float64)
        draws += len(z)
    noise = 9 / (2 * draws)  # the expected divergence of the draws themselves, at most
    assert _divergence(total / draws, log_posterior(loc, covariance)) < ALLOWED + 4 * noise


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_logits_give_exactly_the_softmax(dtype):
    loc = 3 * _normal(0, 5, 7).to(dtype)
    assert torch.equal(log_posterior(loc, torch.zeros(7, 7, dtype=dtype)), torch.log_softmax(loc, -1))


def test_a_common_shift_changes_nothing():
    loc, covariance = _normal(0, 6), _covariance(1, 6, 8, 1.0)
    shared = covariance + 25 + torch.linspace(0, 1, 6)[:, None] + torch.linspace(0, 1, 6)
    assert _divergence(posterior(loc, covariance), log_posterior(loc, shared)) < 1e-8


def test_a_tie_stays_a_tie():
    covariance = torch.tensor([[9.0, 2.0], [2.0, 9.0]], dtype=torch.float64)
    torch.testing.assert_close(
        posterior(torch.zeros(2, dtype=torch.float64), covariance), torch.tensor([0.5, 0.5]).double()
    )


def test_derivatives_at_zero_covariance_are_those_of_the_softmax():
    loc = _normal(0, 5)
    by_loc, by_covariance = torch.func.jacrev(posterior, argnums=(0, 1))(loc, torch.zeros(5, 5, dtype=torch.float64))
    torch.testing.assert_close(by_loc, torch.func.jacrev(lambda x: torch.softmax(x, -1))(loc))
    torch.testing.assert_close(by_covariance, 0.5 * torch.func.hessian(lambda x: torch.softmax(x, -1))(loc))


@pytest.mark.parametrize("rank", [1, 2, 3, 6])
@pytest.mark.parametrize(("deviation", "points", "tolerance"), [(0.5, FEW, 1e-4), (1.0, MANY, 1e-4), (3.0, MANY, 1e-3)])
def test_derivatives_agree_with_finite_differences(rank, deviation, points, tolerance):
    loc, root = _normal(2, 4), deviation * _normal(rank, 4, rank) / math.sqrt(rank)
    turn, step = (_normal(4, 4), 0.3 * deviation * _normal(9, 4, rank)), 1e-2
    covariance, along = root @ root.T, (turn[0], root @ turn[1].T + turn[1] @ root.T)

    def at(k: float) -> Tensor:
        moved = root + k * step * turn[1]
        return posterior(loc + k * step * turn[0], moved @ moved.T, MANY)  # as good as exact

    wanted = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)
    found, pushed = torch.func.jvp(lambda *x: posterior(*x, points), (loc, covariance), along)
    torch.testing.assert_close(found, posterior(loc, covariance, points))
    torch.testing.assert_close(pushed, wanted, atol=tolerance, rtol=0)
    by_loc, by_covariance = torch.func.jacrev(lambda *x: posterior(*x, points), argnums=(0, 1))(loc, covariance)
    torch.testing.assert_close(by_loc @ along[0] + (by_covariance * along[1]).sum((-2, -1)), pushed)


@pytest.mark.parametrize(
    "covariance", [torch.zeros(4, 4), torch.eye(4), torch.ones(4, 4), torch.diag(torch.tensor([1.0, 0, 0, 0]))]
)
def test_derivatives_are_finite_at_equal_and_vanishing_eigenvalues(covariance):
    loc, covariance = torch.tensor([0.0, 0.0, 1.0, -40.0]).requires_grad_(), covariance.clone().requires_grad_()
    log_posterior(loc, covariance).sum().backward()
    assert loc.grad.isfinite().all()
    assert covariance.grad.isfinite().all()
    assert covariance.grad.abs().sum() > 0


def test_second_derivatives_are_refused():
    loc, covariance = torch.zeros(3, requires_grad=True), torch.eye(3).requires_grad_()
    (first,) = torch.autograd.grad(posterior(loc, covariance)[0], loc, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        first.sum().backward()
    plain = loc.detach(), covariance.detach()
    for twice in (
        torch.func.jacrev(torch.func.jacrev(posterior, 1), 1),
        torch.func.hessian(posterior, 1),
        torch.func.jacrev(torch.func.jacfwd(posterior, 1), 1),
    ):
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            twice(*plain)
    with pytest.raises(NotImplementedError, match="forward-mode over forward-mode"):
        torch.func.jacfwd(torch.func.jacfwd(posterior, 1), 1)(*plain)


def test_narrow_and_wide_items_of_a_batch_get_what_they_get_alone():
    loc = _normal(0, 2, 3, 4).requires_grad_()
    covariance = torch.stack([_covariance(i, 4, 4, (0.1, 5.0)[i % 2]) for i in range(6)]).reshape(2, 3, 4, 4)
    together = log_posterior(loc, covariance)
    alone = torch.stack(
        [log_posterior(m, c) for m, c in zip(loc.reshape(6, 4), covariance.reshape(6, 4, 4), strict=True)]
    )
    torch.testing.assert_close(together, alone.reshape(2, 3, 4))
    weight = _normal(1, 2, 3, 4)
    gradients = [torch.autograd.grad((weight * x.reshape(2, 3, 4)).sum(), loc)[0] for x in (together, alone)]
    torch.testing.assert_close(*gradients)


def test_vmap_and_compile_give_the_same():
    loc, covariance = _normal(0, 3, 4), torch.stack([_covariance(i, 4, 3, 0.7) for i in range(3)])
    of_few = functools.partial(log_posterior, points=FEW)  # what they take, as they cannot look at data
    wanted = of_few(loc, covariance)
    torch.testing.assert_close(torch.func.vmap(log_posterior)(loc, covariance), wanted)
    torch.testing.assert_close(torch.func.vmap(log_posterior, (0, None))(loc, covariance[1])[1], wanted[1])
    compiled = compile_whole(log_posterior)
    results = []
    for function in (compiled, of_few):
        leaves = loc.clone().requires_grad_(), covariance.clone().requires_grad_()
        result = function(*leaves)
        results.append((result, *torch.autograd.grad((result * _normal(5, 3, 4)).sum(), leaves)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize(("deviation", "most"), [(0.3, 1e-6), (1.0, 5e-6), (3.0, 2e-5)])
def test_every_item_has_as_many_points_as_it_needs(classes, deviation, most):
    """The error that the docstring states, against many points, at a part of their cost."""
    items = [_covariance(i, classes, 1 + i % classes, deviation) for i in range(8)]
    loc, covariance = deviation * _normal(1, 8, classes), torch.stack(items)
    wanted, found = log_posterior(loc, covariance, 1 << 18), log_posterior(loc, covariance)
    assert ((wanted.exp() * (wanted - found)).sum(-1) < most).all()
    root, spread = _root(loc, covariance)
    counts = _enough(loc, root, spread)
    assert counts.min() >= LEAST
    assert counts.float().mean() < MANY / 4
    assert torch.equal(_enough(loc[2:3], root[2:3], spread[2:3]), counts[2:3])


def test_nothing_is_drawn():
    before = torch.random.get_rng_state()
    first, second = (posterior(torch.arange(5.0), 4 * torch.eye(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())


def test_small_probabilities_do_not_underflow():
    loc = torch.tensor([0.0, -300.0, -1e30, -torch.inf], requires_grad=True)
    covariance = torch.eye(4).requires_grad_()
    log_q = log_posterior(loc, covariance)
    assert -300 < log_q[1] < -280
    assert log_q[3] == -torch.inf
    log_q[:2].sum().backward()
    assert loc.grad.isfinite().all()
    assert covariance.grad.isfinite().all()


def test_half_precision_is_computed_in_single():
    loc, covariance = torch.tensor([1.0, 0.0, -1.0]), torch.eye(3)
    found = log_posterior(loc.bfloat16(), covariance.bfloat16())
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, log_posterior(loc, covariance).bfloat16())


def test_one_class_is_certain():
    assert posterior(torch.tensor([3.0]), torch.tensor([[4.0]])) == 1


def test_not_a_number_stays_where_it_is():
    covariance = torch.eye(3).repeat(2, 1, 1)
    covariance[0, 1, 1] = torch.nan
    found = posterior(torch.zeros(2, 3), covariance)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


def test_a_covariance_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"the covariance of 3 logits must have the shape"):
        posterior(torch.zeros(3), torch.eye(4))
