"""Operations in which an element meets itself, against the exact moments of quadratic forms of normal variables."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import DependenceWarning, Normal, propagate

ONE = torch.ones((), dtype=torch.float64)
PLACES = torch.tensor([0, 0, 1, 2, 2, 2])

# name -> (a map of degree two at most, the shape of its argument)
MET: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "matmul of vectors": (lambda x: x @ x, (3,)),
    "matmul of a matrix": (lambda x: x @ x, (3, 3)),
    "matmul with the transpose": (lambda x: x @ x.T, (2, 3)),
    "the transpose first": (lambda x: x.T @ x, (2, 3)),
    "matmul of a batch": (lambda x: x @ x.mT, (2, 2, 3)),
    "matmul of a batch with one of it": (lambda x: x @ x[0].mT, (2, 2, 3)),
    "matmul of two shapes": (lambda x: x.reshape(2, 2, 3) @ x.reshape(2, 3, 2), (12,)),
    "matmul of overlapping slices": (lambda x: x[:, :3] @ x[:, 1:].T, (2, 4)),
    "matmul with constants": (lambda x: F.pad(x, (1, 0)) @ F.pad(x, (0, 1)).T, (2, 3)),
    "matmul with a row": (lambda x: x @ x[0], (3, 3)),
    "mm": (lambda x: torch.mm(x, x), (2, 2)),
    "bmm": (lambda x: torch.bmm(x, x.mT), (2, 2, 3)),
    "mv": (lambda x: torch.mv(x, x[0]), (3, 3)),
    "inner": (lambda x: torch.inner(x, x), (2, 3)),
    "linear": (lambda x: F.linear(x, x), (2, 3)),
    "outer": (lambda x: torch.outer(x, x), (3,)),
    "outer of the flipped": (lambda x: torch.outer(x, x.flip(0)), (3,)),
    "dot": (lambda x: torch.dot(x, x), (3,)),
    "dot with the rolled": (lambda x: torch.dot(x, x.roll(1)), (3,)),
    "vdot": (lambda x: torch.vdot(x, x), (3,)),
    "tensordot of all": (lambda x: torch.tensordot(x, x, dims=2), (2, 3)),
    "tensordot of one": (lambda x: torch.tensordot(x, x, dims=([0], [0])), (2, 3)),
    "addmm": (lambda x: torch.addmm(ONE, x, x.T, beta=3, alpha=-2), (2, 3)),
    "addmv": (lambda x: torch.addmv(ONE, x, x[0], alpha=2), (3, 3)),
    "addr": (lambda x: torch.addr(ONE, x, x), (3,)),
    "addbmm": (lambda x: torch.addbmm(ONE, x, x.mT, alpha=2), (2, 2, 3)),
    "baddbmm": (lambda x: torch.baddbmm(ONE, x, x.mT, beta=0.5, alpha=2), (2, 2, 3)),
    "addcmul": (lambda x: torch.addcmul(x, x, x, value=2), (3,)),
    "addcmul with a plain factor": (lambda x: torch.addcmul(x, x, 2 * ONE, value=2), (3,)),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), (2, 3)),
    "einsum of a matrix": (lambda x: torch.einsum("ij,jk->ik", x, x), (3, 3)),
    "einsum of a batch": (lambda x: torch.einsum("bij,bkj->bik", x, x), (2, 2, 2)),
    "einsum with the trace": (lambda x: torch.einsum("ij,ji->", x, x), (3, 3)),
    "products of all pairs": (lambda x: x[:, None] * x[None], (3,)),
    "differences of all pairs": (lambda x: x[:, None] - x[None], (3,)),
    "with a view": (lambda x: x * x.view(3), (3,)),
    "added to the flipped": (lambda x: x + x.flip(0), (3,)),
    "less the transpose": (lambda x: torch.sub(x, x.T, alpha=2), (3, 3)),
    "lerp to the flipped": (lambda x: torch.lerp(x, x.flip(0), 0.3), (3,)),
    "lerp to itself": (lambda x: torch.lerp(x, x, 0.3), (3,)),
    "sum of a stack": (lambda x: torch.stack([x, x]).sum(0), (3,)),
    "sum of a stack, of others": (lambda x: torch.stack([x, x]).sum(-1), (3,)),
    "mean of what is joined": (lambda x: torch.cat([x, x.flip(0)]).mean(0), (3, 2)),
    "sum of repeated indices": (lambda x: x[PLACES].sum(0), (3, 2)),
    "mean of repeated indices": (lambda x: x.index_select(0, PLACES).mean(), (3, 2)),
    "mean of repeats": (lambda x: x.repeat(2, 3).mean(1), (3, 2)),
    "sum of an expansion": (lambda x: x[:, None].expand(3, 4).sum(), (3,)),
    "sum with a border": (lambda x: F.pad(x, (2, 1), mode="replicate").sum(-1), (1, 3)),
    "mean of the enlarged": (lambda x: F.interpolate(x, scale_factor=2).mean(-1), (1, 1, 3)),
    "sum of repeats and constants": (lambda x: torch.cat([x, torch.zeros_like(ONE).expand(2), x]).sum(), (2,)),
    "sum of windows": (lambda x: x.unfold(0, 2, 1).sum(0), (4,)),
}


def _value(shape: tuple[int, ...]) -> Normal:
    generator = torch.Generator().manual_seed(7)
    return Normal(*(draw(shape, generator=generator, dtype=torch.float64) for draw in (torch.randn, torch.rand)))


def _moments(function: Callable[[Tensor], Tensor], x: Normal) -> tuple[Tensor, Tensor]:
    """Exact moments of a quadratic map: from its slope and its curvature at the mean."""
    size, shape = x.loc.numel(), x.loc.shape
    y = function(x.loc)

    def flat(b: Tensor) -> Tensor:
        return function(b.reshape(shape)).flatten()

    slope: Tensor = torch.func.jacrev(flat)(x.loc.flatten())
    curve: Tensor = torch.func.jacfwd(torch.func.jacrev(flat))(x.loc.flatten())
    spread = x.variance.flatten()
    loc = y.flatten() + 0.5 * curve.diagonal(dim1=1, dim2=2) @ spread
    variance = slope**2 @ spread + 0.5 * (curve**2 * spread[:, None] * spread).reshape(-1, size * size).sum(-1)
    return loc.reshape(y.shape), variance.reshape(y.shape)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of torch.func, in the oracle
@pytest.mark.parametrize("name", MET)
def test_an_element_that_meets_itself_is_one_variable(name: str) -> None:
    function, shape = MET[name]
    x = _value(shape)
    y = function(x)
    assert type(y) is Normal
    torch.testing.assert_close((y.loc, y.variance), _moments(function, x), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["matmul of a matrix", "outer", "products of all pairs", "sum of a stack", "addcmul"])
def test_gradients_of_elements_that_meet_themselves(name: str) -> None:
    function, shape = MET[name]
    x = _value(shape)

    def moments(loc: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        y = function(Normal(loc, variance, validate_args=False))
        return y.loc, y.variance

    parts = (x.loc.requires_grad_(), x.variance.requires_grad_())
    assert torch.autograd.gradcheck(moments, parts)
    assert torch.autograd.gradgradcheck(moments, parts)


@pytest.mark.parametrize("name", ["matmul with the transpose", "differences of all pairs", "sum of repeated indices"])
def test_elements_that_meet_themselves_compile(name: str) -> None:
    torch.compiler.reset()
    function, shape = MET[name]
    x = _value(shape)
    y, compiled = function(x), torch.compile(function, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close((compiled.loc, compiled.variance), (y.loc, y.variance))


@pytest.mark.parametrize("name", ["matmul with the transpose", "sum of a stack"])
def test_elements_that_meet_themselves_in_batches(name: str) -> None:
    function, shape = MET[name]
    x = _value((4, *shape))
    y = torch.func.vmap(function)(x)
    for i in range(4):
        one = function(Normal(x.loc[i], x.variance[i]))
        torch.testing.assert_close((y.loc[i], y.variance[i]), (one.loc, one.variance))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_short_types_keep_their_type(dtype: torch.dtype) -> None:
    x = Normal(torch.ones(3, 3, dtype=dtype), 1.0)
    y = x @ x.T
    assert y.loc.dtype == y.variance.dtype == dtype
    assert y.loc.diagonal().tolist() == [6.0, 6.0, 6.0]
    assert y.variance.diagonal().tolist() == [18.0, 18.0, 18.0]


# name -> (functions of one value that meet, the shape)
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "dot": (lambda x: torch.dot(x, x.tanh()), (3,)),
    "tensordot of all": (lambda x: torch.tensordot(x.relu(), x, dims=2), (3, 2)),
    "einsum": (lambda x: torch.einsum("ij,ij->i", x, x.sigmoid()), (3, 2)),
    "addcmul": (lambda x: torch.addcmul(x, x.tanh(), x), (3,)),
    "lerp": (lambda x: torch.lerp(x, x.tanh(), 0.3), (3,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one_value_are_followed(name: str) -> None:
    function, shape = FUNCTIONS[name]
    x = _value(shape)
    y = function(x)
    draws = torch.func.vmap(function)(x.sample(200_000, generator=torch.Generator().manual_seed(0)))
    assert ((y.loc - draws.mean(0)).abs() / draws.std(0)).max() < 0.02
    assert (y.stddev / draws.std(0)).log().abs().max() < 0.02


WARNED: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "matmul": (lambda x: x @ x.relu().T, (2, 3)),
    "conv1d": (lambda x: F.conv1d(x, x), (1, 1, 3)),
    "bilinear": (lambda x: F.bilinear(x, x.flip(-1), ONE.expand(1, 3, 3)), (2, 3)),
    "addmm": (lambda x: torch.addmm(x, x, ONE.expand(3, 3)), (3, 3)),
    "maximum": (lambda x: torch.maximum(x[:, None], x[None]), (3,)),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, x.flip(0), 0), (3,)),
    "scaled_dot_product_attention": (lambda x: F.scaled_dot_product_attention(x, x, x), (1, 2, 2)),
    "mm": (lambda x: torch.mm(x.repeat(2, 1), x.T), (2, 3)),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_is_not_followed_warns(name: str) -> None:
    function, shape = WARNED[name]
    with pytest.warns(DependenceWarning, match=f"the arguments of '{name}' at top level have elements in common"):
        function(_value(shape))


def test_the_warning_compiles() -> None:
    torch.compiler.reset()
    function, shape = WARNED["conv1d"]
    with pytest.warns(DependenceWarning, match="the arguments of 'conv1d' at the place shown by the user stack"):
        torch.compile(function, fullgraph=True, backend="eager")(_value(shape))


def test_einsum_refuses_what_it_cannot_follow() -> None:
    x = _value((2, 3))
    for equation, other in (("ij,kl->ik", x), ("ij,kj->ik", x.tanh()), ("ij,kj->ik", x.repeat(2, 1))):
        with pytest.raises(NotImplementedError, match="'einsum' of dependent factors"):
            torch.einsum(equation, x, other)


def _parts(x: Any) -> Any:
    query, key, value = x.chunk(3, -1)
    return torch.softmax((query * 0.5) @ key.mT, -1) @ value


QUIET: dict[str, Callable[[Any], Any]] = {
    "attention of chunks": _parts,
    "attention of slices": lambda x: F.scaled_dot_product_attention(x[..., :2], x[..., 2:4], x[..., 4:]),
    "attention of unbound": lambda x: F.scaled_dot_product_attention(*x.unflatten(-1, (3, 2)).permute(2, 0, 1, 3)),
    "attention of numbers": lambda x: F.scaled_dot_product_attention(x[0], x[1] * 2, x[-1]),
    "partly rotated": lambda x: torch.cat([x[0].tanh(), x[0]]) @ torch.cat([x[1].tanh(), x[1]]).mT,
    "a gate": lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1].sigmoid(),
    "a residual": lambda x: x + F.linear(x, torch.ones(6, 6, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_cut_apart_does_not_warn_nor_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("momentprop.rules.shared.numbers", lambda *_: pytest.fail("the elements are apart"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QUIET[name](_value((3, 4, 6)))


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "TransformerEncoderLayer", "MultiheadAttention"])
def test_ordinary_layers_do_not_warn(layer: str) -> None:
    torch.manual_seed(0)
    made: Any = nn.TransformerEncoderLayer(8, 2, 16) if layer[0] == "T" else getattr(nn, layer)(8, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.randn(3, 2, 8)
        propagate(made if layer[0] != "M" else lambda x: made(x, x, x)[0], x, input_variance=0.1, covariance=False)
