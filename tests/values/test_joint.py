"""`Joint` against algebra: covariances, draws, constructors, lazy values, and what it refuses."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch.distributions import Dirichlet, Independent, LowRankMultivariateNormal, MultivariateNormal
from torch.distributions import Normal as NormalDistribution
from torch.utils import _pytree as pytree

from momentprop import Joint, Normal
from momentprop.values import Full, Mean
from momentprop.values.conversion import as_type
from tests.values.joints import joint_of, whole_covariance


def _matrix(n: int = 3, rank: int = 3, seed: int = 0) -> torch.Tensor:
    root = torch.randn(n, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T


def test_the_covariance_is_that_of_the_factors_and_the_own_noise() -> None:
    x = joint_of(2, 4, own=0.5)
    for item in range(2):
        wanted = 0.5 * torch.eye(4, dtype=torch.float64)
        for factor in x.factors[:, item]:
            wanted = wanted + torch.outer(factor, factor)
        torch.testing.assert_close(x.covariance[item], wanted)
        torch.testing.assert_close(x.variance[item], wanted.diagonal())
        scale = wanted.diagonal().rsqrt()
        torch.testing.assert_close(x.correlation[item], wanted * torch.outer(scale, scale))


@pytest.mark.parametrize(("shape", "batch_dim", "wanted"), [
    ((2, 3, 4), 0, (2, 12, 12)), ((2, 3, 4), 1, (3, 8, 8)), ((2, 3, 4), -1, (4, 6, 6)), ((2, 3), None, (6, 6)),
    ((5,), None, (5, 5)), ((5,), 0, (5, 1, 1)), ((), None, (1, 1)),
])  # fmt: skip
def test_items_may_lie_along_any_dimension(shape: Any, batch_dim: Any, wanted: Any) -> None:
    x = joint_of(*shape, own=0.1, batch_dim=batch_dim)
    assert x.covariance.shape == wanted
    diagonal = x.covariance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(x.of_items(diagonal if diagonal.ndim == 2 else diagonal[None]), x.variance)


def test_a_vector_is_one_item_by_default_and_a_matrix_a_batch() -> None:
    assert joint_of(3).batch_dim is None
    assert joint_of(2, 3).batch_dim == 0


@pytest.mark.parametrize("batch_dim", [0, 1, None])
def test_draws_have_the_covariance(batch_dim: Any) -> None:
    x = joint_of(2, 3, own=0.1, batch_dim=batch_dim)
    n = 100_000
    draws = x.sample(n, generator=torch.Generator().manual_seed(0)).reshape(n, -1)
    wanted = whole_covariance(x)
    error = (wanted.diagonal()[:, None] * wanted.diagonal() + wanted**2).sqrt() / n**0.5
    assert ((torch.cov(draws.T) - wanted).abs() < 5 * error).all()
    assert x.sample().shape == (2, 3)


def test_items_that_share_their_sources_are_drawn_alike() -> None:
    x = joint_of(2, 3)
    draw = torch.cat([x, x]).sample()
    torch.testing.assert_close(draw[:2], draw[2:])


def test_a_covariance_comes_back_singular_or_not() -> None:
    for rank in (0, 1, 3):
        matrix = _matrix(rank=rank)
        x = Joint.from_covariance(torch.zeros(4, 3, dtype=torch.float64), matrix)
        torch.testing.assert_close(x.covariance, matrix.expand(4, 3, 3))
        assert not x.own.any()
        made = Joint.of(*x.parts, batch_dim=0, sources=x.sources)
        torch.testing.assert_close(made.covariance, x.covariance, atol=1e-12, rtol=1e-9)


def test_a_covariance_for_each_item() -> None:
    matrices = torch.stack([_matrix(seed=seed) for seed in range(4)])
    torch.testing.assert_close(Joint.from_covariance(torch.zeros(4, 3).double(), matrices).covariance, matrices)


def test_torch_distributions_come_and_go() -> None:
    matrix, loc = _matrix(), torch.ones(2, 3, dtype=torch.float64)
    x = Joint.from_distribution(MultivariateNormal(loc, matrix))
    torch.testing.assert_close(x.covariance, matrix.expand(2, 3, 3))
    torch.testing.assert_close(x.distribution().covariance_matrix, x.covariance)
    torch.testing.assert_close(x.distribution().mean, loc)
    low = LowRankMultivariateNormal(loc, torch.randn(2, 3, 1).double(), torch.rand(2, 3).double() + 0.1)
    y = Joint.from_distribution(low)
    torch.testing.assert_close(y.covariance, low.covariance_matrix)
    assert y.factors.shape == (1, 2, 3)
    one = Joint.from_distribution(MultivariateNormal(loc[0], matrix))
    assert one.batch_dim is None
    torch.testing.assert_close(one.distribution().covariance_matrix, matrix)
    z = Joint.from_distribution(Independent(NormalDistribution(loc, 2.0), 1))
    torch.testing.assert_close(z.own, torch.full_like(loc, 4.0))


def test_a_singular_covariance_has_no_density() -> None:
    with pytest.raises(ValueError, match="singular, so that there is no density: use `sample`"):
        Joint.from_covariance(torch.zeros(3).double(), _matrix(rank=1)).distribution()


def test_independent_values_refuse_correlated_distributions() -> None:
    for distribution in (
        MultivariateNormal(torch.zeros(2), torch.eye(2)),
        LowRankMultivariateNormal(torch.zeros(2), torch.ones(2, 1), torch.ones(2)),
    ):
        with pytest.raises(TypeError, match=r"`momentprop\.Joint\.from_distribution"):
            Normal.from_distribution(distribution)


def _bad(**changed: Any) -> dict[str, Any]:
    return {"loc": torch.zeros(2, 3), **changed}


@pytest.mark.parametrize(("given", "message"), [
    (_bad(factors=torch.zeros(2, 3)), r"the shape \(K, 2, 3\), but these have \(2, 3\)"),
    (_bad(factors=torch.full((1, 2, 3), torch.nan)), "factors must be finite"),
    (_bad(own=-1.0), "own is a variance and must be non-negative"),
    (_bad(own=torch.zeros(4)), r"own of shape \(4,\) does not broadcast"),
    (_bad(loc=torch.full((2, 3), torch.inf)), "loc must be finite"),
    (_bad(batch_dim=2), "batch_dim is 2, but loc has the shape"),
])  # fmt: skip
def test_bad_components_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Joint(**given)


@pytest.mark.parametrize(("covariance", "message"), [
    (torch.eye(2), r"of 3 units per item must have the shape \(3, 3\) or \(2, 3, 3\), but this one has \(2, 2\)"),
    (torch.tensor([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]]), "must be symmetric, but this one is not"),
    (torch.diag(torch.tensor([1.0, -0.1, 1.0])), "no negative eigenvalue, but this one has -0.1"),
    (torch.full((3, 3), torch.nan), "covariance must be finite"),
])  # fmt: skip
def test_bad_covariances_are_refused(covariance: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Joint.from_covariance(torch.zeros(2, 3), covariance)


def test_types_and_distributions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match=r"loc is torch.float32 but factors is torch.float64"):
        Joint(torch.zeros(3), factors=torch.zeros(1, 3).double())
    with pytest.raises(TypeError, match="must be a tensor or a number, but is a Normal"):
        Joint(torch.zeros(3), Normal(torch.zeros(3), 1.0))  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"cannot take the covariance from a Dirichlet: write `momentprop.Joint.from_covariance"
    ):
        Joint.from_distribution(Dirichlet(torch.ones(3)))
    with pytest.raises(ValueError, match=r"the batch shape is \(2, 2\): give a distribution with one"):
        Joint.from_distribution(MultivariateNormal(torch.zeros(2, 2, 3), torch.eye(3)))
    with pytest.raises(ValueError, match="does not know its input"):
        joint_of(3).cross_covariance()


# lazy values


def test_a_lazy_value_computes_its_covariance_once_and_not_before() -> None:
    calls = []

    def covariance() -> torch.Tensor:
        calls.append(1)
        return _matrix().expand(2, 3, 3)

    x = Joint.lazy(torch.zeros(2, 3, dtype=torch.float64), covariance)
    assert (x.shape, x.units, x.batch_dim) == ((2, 3), 3, 0)
    assert "covariance=<on request>" in repr(x)
    assert not calls
    assert x.is_lazy
    assert x.variance.shape == x.stddev.shape == (2, 3)
    assert x.covariance.shape == (2, 3, 3)
    assert x.factors.shape == (3, 2, 3)
    assert len(calls) == 1
    assert not x.is_lazy
    assert repr(x).startswith("Joint(loc=")


def test_a_lazy_value_gets_gradients_also_after_a_look_without_them() -> None:
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    x = Joint.lazy(weight * torch.ones(2, 3, dtype=torch.float64), lambda: weight * _matrix().expand(2, 3, 3))
    with torch.no_grad():
        assert not x.variance.requires_grad
        assert not x.factors.requires_grad
    (x[:, 0] - x[:, 1]).variance.sum().backward()
    matrix = _matrix()
    torch.testing.assert_close(weight.grad, 2 * (matrix[0, 0] + matrix[1, 1] - 2 * matrix[0, 1]))


def test_gradients_by_a_singular_covariance_are_finite_and_right() -> None:
    matrix = _matrix(rank=1).requires_grad_()
    x = Joint.from_covariance(torch.zeros(3, dtype=torch.float64), matrix)
    (found,) = torch.autograd.grad(x.correlation.sum() + x.stddev.sum(), matrix)
    assert found.isfinite().all()
    direction = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    half = _matrix(rank=1)[:, :1].clone().requires_grad_()  # a way in which it stays a covariance

    def spread(half: torch.Tensor) -> torch.Tensor:
        y = Joint.from_covariance(torch.zeros(3, dtype=torch.float64), half @ half.T, validate_args=False)
        return (y * direction).sum().variance

    assert torch.autograd.gradcheck(spread, half, atol=1e-6)


def test_the_cross_covariance_is_through_shared_sources() -> None:
    x = joint_of(2, 4, own=0.1)
    matrix = torch.randn(3, 4, dtype=torch.float64)
    y = torch.nn.functional.linear(x, matrix)  # type: ignore[arg-type]
    shared = x.covariance - torch.diag_embed(x.own)
    torch.testing.assert_close(y.cross_covariance(x), matrix @ shared)  # type: ignore[attr-defined]
    torch.testing.assert_close(x.cross_covariance(x), x.covariance)
    assert not joint_of(2, 4).cross_covariance(joint_of(2, 4)).any()
    lazy = Joint.lazy(x.loc, lambda: x.covariance, cross=lambda which: torch.ones(2, 4, 1 + which))
    assert lazy.cross_covariance().shape == (2, 4, 1)


# values among values


def test_copies_keep_their_sources() -> None:
    for x in (joint_of(2, 3, own=0.1), Joint.from_covariance(torch.zeros(2, 3).double(), _matrix())):
        leaves, structure = pytree.tree_flatten(x)
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        copies = [
            pickle.loads(pickle.dumps(x)),
            copy.deepcopy(x),
            x.copied(),
            x.each(torch.clone),
            pytree.tree_unflatten(leaves, structure),
            torch.load(file, weights_only=True),
        ]
        for same in copies:
            assert (same.batch_dim, same.sources) == (x.batch_dim, x.sources)
            torch.testing.assert_close((same - x).factors, torch.zeros(3, 2, 3).double())
    assert x.float().factors.dtype is torch.float32  # type: ignore[attr-defined]


def test_a_tensor_is_a_value_without_noise() -> None:
    x = Joint.certain(torch.ones(2, 3))
    assert not x.variance.any()
    assert x.sources == ()
    assert not as_type(Mean(torch.ones(2)), Joint).variance.any()


def test_a_normal_becomes_a_joint_of_independent_noise() -> None:
    normal = Normal(torch.zeros(2, 3), 2.0)
    x = as_type(normal, Joint)
    assert (x.own == 2).all()
    assert len(x.factors) == 0
    full = as_type(normal, Full)
    assert not full.own.any()
    assert len(full.factors) == 3
    torch.testing.assert_close(full.covariance, x.covariance)
    assert type(as_type(x, Normal)) is Normal


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("shape", "batch_dim", "dim"), [((4,), None, 0), ((2, 4), 0, 1), ((2, 3, 2), 0, 1), ((3, 2, 4), 1, 0)]
)
def test_the_covariance_along_a_dimension_is_a_part_of_the_whole(
    shape: tuple[int, ...], batch_dim: int | None, dim: int, lazy: bool
) -> None:
    x = joint_of(*shape, own=0.2, batch_dim=batch_dim)
    if lazy:
        x = Joint.from_covariance(x.loc, x.covariance, batch_dim=batch_dim)
    found = x.covariance_along(dim)
    assert found.shape == (*(size for d, size in enumerate(shape) if d != dim), shape[dim], shape[dim])
    rows = x.factors.movedim(dim + 1, -1).movedim(0, -2)
    torch.testing.assert_close(found, rows.mT @ rows + torch.diag_embed(x.own.movedim(dim, -1)))


def test_probabilities_are_those_of_draws() -> None:
    x = joint_of(2, 4, own=0.3)
    drawn = torch.softmax(x.sample(200_000, generator=torch.Generator().manual_seed(0)), -1).mean(0)
    torch.testing.assert_close(x.probabilities(), drawn, rtol=0.0, atol=0.003)
    torch.testing.assert_close(torch.log_softmax(x, -1).loc, x.probabilities())  # type: ignore[call-overload]
    labels = torch.tensor([1, 3])
    loss = torch.nn.functional.cross_entropy(x, labels)  # type: ignore[arg-type]
    torch.testing.assert_close(loss, -x.probabilities()[[0, 1], labels].log().mean())
    with pytest.raises(ValueError, match="independent of each other"):
        x.probabilities(0)
