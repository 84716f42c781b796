"""The layers of `momentprop.nn`: each in every method, copied, saved, moved, compiled, and what they refuse."""

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Laplace, Uniform
from torch.utils import _pytree as pytree

from momentprop import Categorical, Mean, Normal, propagate
from momentprop.nn import (
    AdditiveNoise,
    GaussianNoise,
    GumbelArgmax,
    Heaviside,
    LogisticBernoulli,
    Maxout,
    MultiplicativeNoise,
    NoisyActivation,
    Probit,
    ScoreFunction,
    Sign,
    Softmax,
    StochasticBinary,
    StochasticReLU,
)
from tests.nn.inputs import a_tensor, seeded, values

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LogisticBernoulli": LogisticBernoulli,
    "LogisticBernoulli(ap2a)": lambda: LogisticBernoulli("ap2a", low=-1.0),
    "LogisticBernoulli(ap2b)": lambda: LogisticBernoulli("ap2b"),
    "LogisticBernoulli(pea)": lambda: LogisticBernoulli("pea"),
    "LogisticBernoulli(mackay)": lambda: LogisticBernoulli("mackay"),
    "Probit": lambda: Probit(low=-1.0),
    "Heaviside": Heaviside,
    "Sign": Sign,
    "StochasticBinary(uniform)": lambda: StochasticBinary(Uniform(-2.0, 3.0)),
    "StochasticBinary(laplace)": lambda: StochasticBinary("laplace", low=-1.0),
    "StochasticBinary(gumbel)": lambda: StochasticBinary("gumbel"),
    "StochasticBinary(tensor)": lambda: StochasticBinary(Laplace(torch.zeros(4), torch.ones(4))),
    "StochasticReLU": StochasticReLU,
    "StochasticReLU(logistic)": lambda: StochasticReLU("logistic"),
    "NoisyActivation": lambda: NoisyActivation(nn.PReLU(4), "laplace"),
    "GaussianNoise": lambda: GaussianNoise(0.5),
    "GaussianNoise(learned)": lambda: GaussianNoise(nn.Parameter(torch.tensor(0.5))),
    "GaussianNoise(tensor)": lambda: GaussianNoise(torch.linspace(0, 1, 4)),
    "AdditiveNoise": lambda: AdditiveNoise(Uniform(0.0, 2.0)),
    "MultiplicativeNoise": lambda: MultiplicativeNoise(Uniform(0.0, 2.0)),
    "MultiplicativeNoise.dropout": lambda: MultiplicativeNoise.dropout(0.3),
    "MultiplicativeNoise.gaussian_dropout": lambda: MultiplicativeNoise.gaussian_dropout(0.3),
    "Maxout": lambda: Maxout(2),
    "Softmax": lambda: Softmax("fast"),
    "Softmax(linear)": lambda: Softmax("fast", linear=seeded(nn.Linear(4, 3))),
    "GumbelArgmax": lambda: GumbelArgmax(method="fast"),
}
RANDOM = {name for name in LAYERS if not name.startswith(("Heaviside", "Sign", "Maxout", "Softmax"))}
PAPERS = {f"LogisticBernoulli({method})" for method in ("ap2a", "ap2b", "pea", "mackay")}
ASSUMING = {"NoisyActivation", "StochasticReLU(logistic)", "Softmax(linear)", "Softmax", "GumbelArgmax"}
"""Layers whose moments are those of a difference, or a posterior, taken as something simpler."""
layers = pytest.mark.parametrize("name", LAYERS)


def _parts(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


@layers
def test_every_layer_acts_on_every_value_with_gradients_to_its_input(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    for value in values():
        leaves = [part.detach().requires_grad_() for part in pytree.tree_leaves(value)]
        result = layer(value.of(*leaves))
        if not isinstance(result, Categorical):
            assert type(result) is type(value)
        parts = _parts(result)
        assert all(torch.isfinite(part).all() for part in parts)
        grads = torch.autograd.grad(sum((part * part).sum() for part in parts), leaves)
        assert all(torch.isfinite(grad).all() for grad in grads)
        if isinstance(value, Normal):
            assert all((grad != 0).any() for grad in grads)


@layers
def test_a_tensor_is_drawn_in_training_and_averaged_in_evaluation(name: str) -> None:
    layer, x = LAYERS[name](), a_tensor()
    torch.manual_seed(0)
    first, second = layer(x), layer(x)
    averaged = layer.eval()(x)
    if isinstance(averaged, Categorical):
        assert torch.equal(averaged.loc, layer(Mean(x)).loc)
        return
    assert torch.equal(averaged, layer(x))
    assert torch.equal(averaged, layer(Mean(x)).loc)
    assert torch.equal(first, second) == (name not in RANDOM)
    with torch.no_grad():
        draws = torch.stack([layer.train()(x) for _ in range(2000)])
        error = draws.std(0) / math.sqrt(2000)
        assert ((draws.mean(0) - averaged).abs() < 5 * error + 1e-6).all()


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in PAPERS | {"Softmax(linear)"}])
def test_moments_agree_with_many_draws(name: str) -> None:
    layer, x = LAYERS[name](), values()[2]
    samples = 2000 if name in ASSUMING else 10_000
    moments, drawn = layer(x), propagate(layer, x, method="sample", samples=samples, seed=0)
    assert ((moments.loc - drawn.loc).abs() < 5 * drawn.loc_error + 1e-6).all()
    if not isinstance(moments, Categorical):  # of which the draws are probabilities, not classes
        assert ((moments.variance - drawn.variance).abs() < 5 * drawn.variance_error + 1e-6).all()


@pytest.mark.filterwarnings("ignore::momentprop.NothingRandomWarning")
@layers
def test_a_tensor_that_meets_a_layer_inside_a_propagation_is_lifted(name: str) -> None:
    layer, x = LAYERS[name]().eval(), a_tensor()
    for method, value in (("ap1", Mean(x)), ("ap2", Normal(x, 0.0))):
        found, wanted = propagate(layer, x, method=method, covariance=False), layer(value)  # type: ignore[arg-type]
        torch.testing.assert_close(_parts(found)[0], _parts(wanted)[0])


WITH_LIMIT = [name for name in LAYERS if name not in ("LogisticBernoulli(ap2a)", "LogisticBernoulli(pea)")]


@pytest.mark.parametrize("name", WITH_LIMIT)  # two of the paper's formulas do not tend to it, and say so
def test_without_variance_a_layer_is_plain_with_finite_gradients(name: str) -> None:
    layer, x = LAYERS[name]().eval().double(), a_tensor(torch.float64)
    leaves = x.clone().requires_grad_(), torch.zeros_like(x).requires_grad_()
    result = layer(Normal(*leaves))
    if name not in ASSUMING and not isinstance(result, Categorical):
        torch.testing.assert_close(result.loc, layer(x), rtol=1e-6, atol=1e-7)
    for grad in torch.autograd.grad(sum(part.sum() for part in _parts(result)), leaves):
        assert torch.isfinite(grad).all()


@layers
def test_a_layer_can_be_copied_pickled_and_its_state_saved(name: str) -> None:
    layer, x = LAYERS[name](), values()[2]
    wanted = _parts(layer(x))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(other) == repr(layer)
        assert all(map(torch.equal, _parts(other(x)), wanted))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = LAYERS[name]()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert all(map(torch.equal, _parts(other(x)), wanted))


@layers
def test_a_layer_moves_to_another_type(name: str) -> None:
    layer = LAYERS[name]()
    wanted = _parts(layer(values()[2]))
    wide = layer.double()
    found = _parts(wide(values(torch.float64)[2]))
    assert all(part.dtype == torch.float64 for part in found)
    torch.testing.assert_close([part.float() for part in found], wanted, rtol=1e-4, atol=1e-5)
    assert _parts(wide(a_tensor(torch.float64)))[0].dtype == torch.float64
    noise = getattr(layer, "noise", None)
    assert noise is None or noise.mean.dtype == torch.float64


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("Maxout", "NoisyActivation")])
def test_vmap_over_the_rows_is_the_batch(name: str) -> None:
    """For all layers but those that look for their channels beside a batch dimension."""
    layer, value = LAYERS[name](), values()[2]
    rows = torch.func.vmap(layer)(value)
    torch.testing.assert_close(_parts(rows), _parts(layer(value)), rtol=1e-5, atol=1e-6)


COMPILED = ["LogisticBernoulli", "StochasticBinary(laplace)", "GaussianNoise(learned)", "MultiplicativeNoise.dropout"]


@pytest.mark.parametrize("name", [n if n in COMPILED else pytest.param(n, marks=pytest.mark.full) for n in LAYERS])
def test_a_compiled_layer_gives_what_the_layer_gives(name: str) -> None:
    layer = LAYERS[name]().double()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    normal = values(torch.float64)[2]
    for value in (normal, normal.loc):
        torch.manual_seed(0)
        found = compiled(value)
        torch.manual_seed(0)
        torch.testing.assert_close(_parts(found), _parts(layer(value)), rtol=1e-9, atol=1e-11)


def test_a_compiled_unit_leaves_its_score() -> None:
    model = nn.Sequential(seeded(nn.Linear(4, 2)), LogisticBernoulli(gradient="score"))
    torch.compiler.reset()
    grads = []
    for run in (torch.compile(model, fullgraph=True, backend="aot_eager"), model):
        torch.manual_seed(0)
        with ScoreFunction() as score:
            losses = run(a_tensor()).sum(-1)
        grads.append(torch.autograd.grad(score.surrogate(losses).mean(), model[0].weight)[0])
    torch.testing.assert_close(*grads)
    assert grads[0].abs().sum() > 0


def test_layers_show_what_they_are() -> None:
    assert repr(LogisticBernoulli("ap2b", low=-1)) == (
        "LogisticBernoulli(noise=LogisticDistribution(loc: 0.0, scale: 1.0), low=-1.0, high=1.0, method=ap2b)"
    )
    assert repr(Sign()) == "Sign(low=-1.0, high=1.0)"
    assert repr(StochasticReLU()) == "StochasticReLU(relu, noise=Normal(loc: 0.0, scale: 1.0))"
    assert repr(GaussianNoise(0.5)) == "GaussianNoise(std=0.5)"
    assert repr(GaussianNoise(torch.ones(2))) == "GaussianNoise(std of shape (2,))"
    assert repr(Softmax("race", dim=1)) == "Softmax(method=race, dim=1)"
    assert "gradient=score" in repr(LogisticBernoulli(gradient="score"))


def _refused(error: type[Exception], match: str, make: Callable[[], Any]) -> None:
    with pytest.raises(error, match=match):
        make()


def test_bad_arguments_are_refused_with_what_is_wrong() -> None:
    _refused(ValueError, "unknown noise 'cauchy': choose 'logistic'", lambda: StochasticBinary("cauchy"))
    _refused(ValueError, "at least 0 and less than 1, but p is 1.5", lambda: MultiplicativeNoise.dropout(1.5))
    _refused(
        ValueError, "at least 0 and less than 1, but p is -0.1", lambda: MultiplicativeNoise.gaussian_dropout(-0.1)
    )
    _refused(ValueError, "mean zero cannot be normalized", lambda: MultiplicativeNoise("normal", normalized=True))
    _refused(ValueError, "a standard deviation must not be negative, but std is -1.0", lambda: GaussianNoise(-1.0))
    _refused(ValueError, "must not be negative, but std is -2.0", lambda: GaussianNoise(torch.tensor([1.0, -2.0])))
    _refused(ValueError, "lower value .* below the upper, but low=1.0 and high=0.0", lambda: Heaviside(1.0, 0.0))
    _refused(ValueError, "low=1.0 and high=1.0", lambda: LogisticBernoulli(low=1.0))
    _refused(ValueError, "unknown method 'ap3'; choose one of exact, ap2a", lambda: LogisticBernoulli("ap3"))  # type: ignore[arg-type]
    _refused(ValueError, "'mackay' is for logistic noise", lambda: StochasticBinary("uniform", method="mackay"))
    _refused(ValueError, "unknown gradient 'st'", lambda: Probit(gradient="st"))  # type: ignore[arg-type]
    _refused(ValueError, "distribution function, but Bernoulli has no `cdf`", lambda: StochasticBinary(Bernoulli(0.5)))
    _refused(ValueError, "unknown method 'exact' for a posterior", lambda: Softmax("exact"))  # type: ignore[arg-type]
    _refused(TypeError, "must be an `nn.Linear` or a 1x1 convolution, but is a ReLU", lambda: Softmax(linear=nn.ReLU()))
    _refused(ValueError, "kernel size 1, stride 1, one group", lambda: Softmax(linear=nn.Conv2d(2, 2, 3)))
    _refused(ValueError, "and no padding", lambda: Softmax(linear=nn.Conv2d(2, 2, 1, padding=1)))
    _refused(TypeError, "such as `torch.relu`, but got a str", lambda: NoisyActivation("relu"))  # type: ignore[arg-type]
    _refused(ValueError, "at least 1 piece, but pieces is 0", lambda: Maxout(0))
    _refused(ValueError, "4 channels .* do not divide into groups of 3", lambda: Maxout(3)(a_tensor()))
    _refused(ValueError, "Cauchy does not", lambda: AdditiveNoise(torch.distributions.Cauchy(0.0, 1.0)))
