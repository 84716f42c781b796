"""Products: every multilinear map against the moments of its expansion, and one value given twice."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal
from momentprop.dispatch import MissingRule

# name -> (a map that is affine in each of its arguments, their shapes)
MULTILINEAR: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "bilinear": (F.bilinear, [(2, 2), (2, 3), (2, 2, 3), (2,)]),
    "bilinear without bias": (F.bilinear, [(2,), (3,), (2, 2, 3)]),
    "dot": (torch.dot, [(4,), (4,)]),
    "vdot": (torch.vdot, [(4,), (4,)]),
    "mv": (torch.mv, [(3, 4), (4,)]),
    "inner": (torch.inner, [(2, 4), (3, 4)]),
    "outer": (torch.outer, [(3,), (4,)]),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=([0, 2], [1, 0])), [(2, 3, 4), (4, 2)]),
    "tensordot of all": (torch.tensordot, [(2, 3), (2, 3)]),
    "addmv": (lambda a, b, c: torch.addmv(a, b, c, beta=2, alpha=3), [(3,), (3, 4), (4,)]),
    "addr": (lambda a, b, c: torch.addr(a, b, c, beta=2, alpha=3), [(3, 4), (3,), (4,)]),
    "addbmm": (lambda a, b, c: torch.addbmm(a, b, c, alpha=3), [(2, 3), (2, 2, 2), (2, 2, 3)]),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0.5), [(2, 3), (2, 3), (3,)]),
    "lerp": (torch.lerp, [(2, 3), (2, 3), (2, 3)]),
    "lerp by a number": (lambda a, b: torch.lerp(a, b, 0.3), [(2, 3), (2, 3)]),
    "multi_dot": (lambda a, b: torch.linalg.multi_dot([a, b]), [(2, 3), (3, 2)]),
    "einsum, matrices": (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(2, 3), (3, 2)]),
    "einsum, implicit": (lambda a, b: torch.einsum("ij,jk", a, b), [(2, 3), (3, 2)]),
    "einsum, heads": (lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), [(1, 2, 2, 3), (1, 2, 2, 3)]),
    "einsum, ellipsis": (lambda a, b: torch.einsum("...id,...jd->...ij", a, b), [(2, 2, 2), (2, 2)]),
    "einsum, a dimension of one only": (lambda a, b: torch.einsum("bi,bj->b", a, b), [(2, 3), (2, 2)]),
    "einsum, all summed": (lambda a, b: torch.einsum("i,j->", a, b), [(3,), (2,)]),
    "einsum, length one": (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(2, 1), (3, 2)]),
    "einsum, diagonal": (lambda a, b: torch.einsum("ii,ij->j", a, b), [(3, 3), (3, 2)]),
    "einsum, of one": (lambda a: torch.einsum("bij->ji", a), [(2, 3, 2)]),
    "einsum, trace": (lambda a: torch.einsum("ii", a), [(3, 3)]),
    "einsum, a list": (lambda a, b: torch.einsum("i,i->i", [a, b]), [(3,), (3,)]),
    "glu": (lambda a: F.glu(a * torch.tensor([1.0] * 2 + [0.0] * 2)), [(3, 4)]),
    "embedding_bag of means": (lambda a: F.embedding_bag(torch.arange(6), a, torch.tensor([0, 2])), [(8, 2)]),
    "embedding_bag with padding": (
        lambda a: F.embedding_bag(torch.arange(6), a, torch.tensor([0, 2, 6]), padding_idx=3, include_last_offset=True),
        [(8, 2)],
    ),
    "embedding": (lambda a: F.embedding(torch.tensor([[1, 0], [3, 2]]), a), [(4, 3)]),
}


def _values(shapes: list[tuple[int, ...]]) -> list[Normal]:
    generator = torch.Generator().manual_seed(3)
    return [
        Normal(*(draw(shape, generator=generator, dtype=torch.float64) for draw in (torch.randn, torch.rand)))
        for shape in shapes
    ]


def _moments(function: Callable[..., Tensor], values: list[Any]) -> tuple[Tensor, Tensor]:
    """Mean and variance of a map that is affine in every argument, by its expansion in products of deviations."""
    random = [i for i, value in enumerate(values) if isinstance(value, Normal)]
    means = [value.loc if isinstance(value, Normal) else value for value in values]
    loc, variance = function(*means), 0
    for count in range(1, len(random) + 1):
        for chosen in itertools.combinations(random, count):
            derivative: Callable[..., Tensor] = function
            for i in chosen:
                derivative = torch.func.jacrev(derivative, i)
            spread = derivative(*means) ** 2
            for i in reversed(chosen):
                spread = spread.flatten(spread.ndim - values[i].ndim) @ values[i].variance.flatten()
            variance = variance + spread
    return loc, variance


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of torch.func, in the oracle
@pytest.mark.parametrize("name", MULTILINEAR)
def test_a_product_is_exact_whichever_factors_are_random(name: str) -> None:
    function, shapes = MULTILINEAR[name]
    values = _values(shapes)
    for certain in itertools.product((False, True), repeat=len(shapes)):
        if all(certain):
            continue
        given = [value.loc if plain else value for value, plain in zip(values, certain, strict=True)]
        y = function(*given)
        if name == "glu":  # its gate is certain here: S(0)
            assert torch.equal(y.variance, values[0].variance[:, :2] / 4)
            continue
        loc, variance = _moments(function, given)
        assert type(y) is Normal
        torch.testing.assert_close(y.loc, loc)
        torch.testing.assert_close(y.variance, variance, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name == "einsum, matrices"
        else pytest.param(name, marks=pytest.mark.full)  # `test_compile` has each rule
        for name in MULTILINEAR
    ],
)
def test_a_product_compiles_to_the_same_values(name: str) -> None:
    torch.compiler.reset()
    function, shapes = MULTILINEAR[name]
    values = _values(shapes)
    compiled, eager = torch.compile(function, fullgraph=True, backend="aot_eager")(*values), function(*values)
    torch.testing.assert_close((compiled.loc, compiled.variance), (eager.loc, eager.variance))


@pytest.mark.parametrize("name", MULTILINEAR)
def test_a_product_has_right_gradients(name: str) -> None:
    function, shapes = MULTILINEAR[name]
    leaves = [part.requires_grad_() for value in _values(shapes) for part in (value.loc, value.variance)]

    def moments(*parts: Tensor) -> tuple[Tensor, Tensor]:
        y = function(*(Normal(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)))
        return y.loc, y.variance

    assert torch.autograd.gradcheck(moments, leaves)


def test_one_value_given_twice_is_squared() -> None:
    x = _values([(4,)])[0]
    square = torch.square(x)
    for y in (torch.dot(x, x), torch.vdot(x, x), torch.einsum("i,i->", x, x)):
        torch.testing.assert_close((y.loc, y.variance), (square.loc.sum(), square.variance.sum()))
    squares = torch.einsum("i,j->ij", x, x)
    torch.testing.assert_close(squares.loc.diagonal(), square.loc)
    torch.testing.assert_close(squares.variance.diagonal(), square.variance)
    with pytest.raises(MissingRule, match="'einsum' of dependent factors under 'i,j->'"):
        torch.einsum("i,j->", x, x)


def test_a_bilinear_layer_of_one_value_is_a_quadratic_form() -> None:
    x, weight = _values([(5, 3)])[0], _values([(2, 3, 3)])[0]
    y = F.bilinear(x, x, weight.loc, torch.ones(2, dtype=torch.float64))
    draws = x.loc + x.stddev * torch.randn(400_000, 5, 3, generator=torch.Generator().manual_seed(1)).double()
    z = torch.einsum("nbi,kij,nbj->nbk", draws, weight.loc, draws) + 1
    assert ((y.loc - z.mean(0)).abs() < 5 * z.std(0) / 400_000**0.5).all()
    torch.testing.assert_close(y.variance, z.var(0), rtol=0.03, atol=0)
    with pytest.raises(MissingRule, match="'bilinear' of one value with itself and a random weight"):
        F.bilinear(x, x, weight)


def test_a_chain_of_products_is_multiplied_from_left_to_right() -> None:
    a, b, c = _values([(2, 3), (3, 4), (4, 2)])
    chain = (a @ b) @ c
    for y in (torch.linalg.multi_dot([a, b, c]), torch.einsum("ij,jk,kl->il", a, b, c)):
        torch.testing.assert_close((y.loc, y.variance), (chain.loc, chain.variance))
    y = torch.einsum("ij,jk,kl->il", a.loc, b.loc, c)  # plain factors first
    torch.testing.assert_close(y.variance, ((a.loc @ b.loc) @ c).variance)


def test_a_gated_linear_unit_is_a_product_with_the_logistic_function() -> None:
    x = _values([(3, 6)])[0]
    y, z = F.glu(x), x[:, :3] * torch.sigmoid(x[:, 3:])
    torch.testing.assert_close((y.loc, y.variance), (z.loc, z.variance))


def test_a_quotient_is_added() -> None:
    a, b = _values([(2, 3), (2, 3)])
    y = torch.addcdiv(a, b, torch.full((2, 3), 4.0).double(), value=2.0)
    torch.testing.assert_close((y.loc, y.variance), (a.loc + b.loc / 2, a.variance + b.variance / 4))
