"""Operations without a rule raise; on request a fallback makes their moments."""

import pytest
import torch
from torch import nn

from momentprop import Categorical, MissingRule, Normal, propagate

X = torch.linspace(1, 4, 6).reshape(2, 3)
V = 0.01


class Elementwise(nn.Module):
    def forward(self, x):
        return torch.digamma(x)


class InPlace(nn.Module):
    def forward(self, x):
        x = x.clone()
        x.digamma_()
        return x


class Mixing(nn.Module):
    def forward(self, x):
        return torch.logcumsumexp(x, -1)


class Sorting(nn.Module):
    def forward(self, x):
        values, indices = torch.kthvalue(x, 2, -1)
        return values, indices


class TwoValues(nn.Module):
    def forward(self, x):
        return torch.hypot(x[:, :1], x[:, 1:])


def _reference(model, variance=V):
    return propagate(model, X, method="sample", input_variance=variance, samples=40_000, seed=1)


def _close(found, wanted, tolerance):
    assert (found.stddev / wanted.stddev - 1).abs().max() < tolerance
    assert ((found.loc - wanted.loc) / wanted.stddev).abs().max() < tolerance


def test_by_default_a_missing_rule_raises():
    with pytest.raises(MissingRule, match="no Normal rule for 'digamma' at module Elementwise"):
        propagate(Elementwise(), X, input_variance=V, covariance=False)


@pytest.mark.parametrize("model", [Elementwise(), InPlace()], ids=["pure", "in place"])
@pytest.mark.parametrize(("fallback", "tolerance"), [("quadrature", 0.02), ("linearize", 0.1), ("monte_carlo", 0.2)])
def test_every_fallback_serves_an_elementwise_operation(model, fallback, tolerance):
    _close(
        propagate(model, X, input_variance=V, fallback=fallback, seed=0, covariance=False), _reference(model), tolerance
    )


@pytest.mark.parametrize("model", [Mixing(), TwoValues()], ids=["one value", "two values"])
@pytest.mark.parametrize(("fallback", "tolerance"), [("linearize", 0.1), ("monte_carlo", 0.2)])
def test_operations_that_mix_elements(model, fallback, tolerance):
    _close(
        propagate(model, X, input_variance=V, fallback=fallback, seed=0, covariance=False), _reference(model), tolerance
    )


def test_linearization_in_random_directions_where_inputs_are_many():
    x = torch.linspace(1, 4, 300).reshape(2, 150)
    found = propagate(Mixing(), x, input_variance=V, fallback="linearize", seed=0, covariance=False)
    wanted = propagate(Mixing(), x, method="sample", input_variance=V, samples=4000, seed=0)
    assert (found.stddev / wanted.stddev).log().abs().mean() < 0.1
    elementwise = propagate(Elementwise(), x, input_variance=V, fallback="linearize", covariance=False)
    torch.testing.assert_close(elementwise.variance, V * torch.polygamma(1, x) ** 2)  # there it is exact


def test_integer_outputs_are_those_of_the_mean():
    for fallback in ("monte_carlo", "linearize"):
        values, indices = propagate(Sorting(), X, input_variance=V, fallback=fallback, seed=0, covariance=False)
        assert type(values) is Normal
        assert indices.tolist() == [1, 1]


def test_quadrature_refuses_what_is_not_elementwise():
    for model in (Mixing(), TwoValues(), Sorting()):
        with pytest.raises(MissingRule, match="is not a function of each element of one value"):
            propagate(model, X, input_variance=V, fallback="quadrature", covariance=False)


def test_a_view_is_not_written_to():
    def model(x):
        x = x.clone()
        x[0].digamma_()
        return x

    with pytest.raises(MissingRule, match="'digamma_' at top level has no rule and would write to a view"):
        propagate(model, X, input_variance=V, fallback="linearize", covariance=False)


def test_class_posteriors_have_no_fallback():
    def model(x):
        return torch.log_softmax(x, -1).cumsum(-1)

    assert type(propagate(lambda x: torch.log_softmax(x, -1), X, input_variance=V, covariance=False)) is Categorical
    with pytest.raises(MissingRule, match="no Categorical rule for 'cumsum'"):
        propagate(model, X, input_variance=V, fallback="monte_carlo", covariance=False)


def test_a_fallback_may_be_a_function_of_the_user():
    def forget(kind, function, args, kwargs):
        value = args[0]
        return value.of(function(value.loc), torch.zeros_like(value.loc))

    y = propagate(Elementwise(), X, input_variance=V, fallback=forget, covariance=False)
    assert torch.equal(y.loc, torch.digamma(X))
    assert torch.equal(y.variance, torch.zeros_like(X))


@pytest.mark.parametrize("fallback", ["quadrature", "monte_carlo", "linearize"])
def test_gradients_flow_through_a_fallback(fallback):
    x = X.clone().requires_grad_()
    y = propagate(Elementwise(), Normal(x, V), fallback=fallback, seed=0, covariance=False)
    (by_loc,) = torch.autograd.grad(y.loc.sum(), x, retain_graph=True)
    torch.testing.assert_close(by_loc, torch.polygamma(1, X), rtol=0.2, atol=0)
    (by_variance,) = torch.autograd.grad(y.variance.sum(), x)
    assert (by_variance < 0).all()  # the slope falls


def test_fallbacks_end_with_the_call():
    propagate(Elementwise(), X, input_variance=V, fallback="linearize", covariance=False)
    with pytest.raises(MissingRule):
        Elementwise()(Normal(X, V))


@pytest.mark.parametrize("fallback", ["monte_carlo", "linearize"])
def test_fallbacks_compile(fallback):
    torch.compiler.reset()
    model = Elementwise()
    compiled = torch.compile(
        lambda x: propagate(model, x, input_variance=V, fallback=fallback, covariance=False),
        fullgraph=True,
        backend="eager",
    )
    _close(compiled(X), _reference(model), 0.2)
