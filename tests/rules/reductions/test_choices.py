"""Hard choices by the means: plain indices, the moments of what is chosen, and a warning."""

import warnings
from typing import Any

import pytest
import torch
from examples.factors import Factors
from torch import nn

from momentprop import Fitted, Joint, Mean, MissingRule, Normal, Sample, propagate
from tests.values.factors import factors_of

LOC = torch.tensor([[1.0, 5.0, 3.0, 4.0], [0.0, -2.0, 7.0, 1.0]])
VARIANCE = torch.arange(8.0).reshape(2, 4) / 10
CHOICES: dict[str, Any] = {
    "topk": lambda x: x.topk(2),
    "topk of the smallest": lambda x: torch.topk(x, k=2, dim=0, largest=False, sorted=True),
    "sort": lambda x: x.sort(),
    "sort down": lambda x: torch.sort(x, dim=0, descending=True),
    "stable sort": lambda x: torch.sort(x, stable=True, dim=-1),
}
INDICES: dict[str, Any] = {
    "argmax of all": torch.argmax,
    "argmin": lambda x: torch.argmin(x, dim=0, keepdim=True),
    "argsort": lambda x: x.argsort(1, True),
}


@pytest.mark.parametrize("kind", [Normal, Fitted])
@pytest.mark.parametrize("name", CHOICES)
def test_what_is_chosen_keeps_its_moments(name: str, kind: type[Normal]) -> None:
    with pytest.warns(UserWarning, match=f"'{name.split()[-1 if name[:6] == 'stable' else 0]}' on a random .* choice"):
        values, indices = CHOICES[name](kind(LOC, VARIANCE))
    plain = CHOICES[name](LOC)
    dim = 0 if "down" in name or "smallest" in name else -1
    assert torch.equal(indices, plain.indices)
    assert type(values) is kind
    assert torch.equal(values.loc, plain.values)
    assert torch.equal(values.variance, VARIANCE.gather(dim, indices))


@pytest.mark.parametrize("name", INDICES)
def test_places_are_those_of_the_means(name: str) -> None:
    with pytest.warns(UserWarning, match="at top level is a hard choice: it is made by the means"):
        found = INDICES[name](Normal(LOC, VARIANCE))
    assert torch.equal(found, INDICES[name](LOC))


def test_argmax_of_a_result_is_the_most_probable_class_and_inside_a_model_that_of_the_means() -> None:
    loc, variance = torch.tensor([[1.0, 0.95, 0.0]]), torch.tensor([[0.0, 0.0, 30.0]])
    scores = Normal(loc, variance)
    drawn = propagate(lambda x: x, scores, method="sample", samples=4000, seed=0)
    assert scores.probabilities().argmax(-1).tolist() == [2]  # it seldom wins, but then for sure
    for result in (scores, Joint(loc, variance), drawn):
        assert result.argmax(-1).tolist() == [2]
        assert torch.argmax(result, 1, keepdim=True).tolist() == [[2]]
    for kind in (Normal(loc, variance), Joint(loc, variance)):
        with pytest.warns(UserWarning, match="at module .* is a hard choice: it is made by the means"):
            assert Chooses()(kind).tolist() == [0]
    with pytest.warns(UserWarning, match="'argmax' on a random Normal at top level is a hard choice"):
        propagate(lambda x: (x, x.argmax(-1))[1], loc, input_variance=1.0)


class Chooses(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.argmax(-1)


def test_means_and_draws_choose_as_tensors_do() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (Mean, Sample):
            for name, call in CHOICES.items():
                values, indices = call(kind(LOC))
                assert type(values) is kind, name
                assert torch.equal(indices, call(LOC).indices)
            for call in INDICES.values():
                assert torch.equal(call(kind(LOC)), call(LOC))


def test_a_sure_choice_is_exact_and_gradients_flow_to_it() -> None:
    loc = LOC.clone().requires_grad_()
    found = propagate(lambda x: x.topk(1).values * 2, loc, input_variance=0.01, covariance=False)
    drawn = propagate(lambda x: x.topk(1).values * 2, LOC, input_variance=0.01, method="sample", samples=4000, seed=0)
    assert ((found.loc - drawn.loc).abs() < 5 * drawn.loc_error).all()
    assert ((found.variance - drawn.variance).abs() < 5 * drawn.variance_error).all()
    found.loc.sum().backward()
    assert torch.equal(loc.grad, 2.0 * (LOC.max(-1, keepdim=True).values == LOC))


def test_a_close_choice_is_only_roughly_right() -> None:
    """The mean of the larger of two equal units is 0.56 deviations too small, its deviation 1.21 times too large."""
    x = torch.zeros(2)
    found = propagate(lambda x: x.topk(1).values, x, input_variance=1.0, covariance=False)
    drawn = propagate(lambda x: x.topk(1).values, x, input_variance=1.0, method="sample", samples=4000, seed=0)
    assert float(drawn.loc - found.loc) == pytest.approx(0.5642, abs=0.06)
    assert float((found.variance / drawn.variance).sqrt()) == pytest.approx(1.211, abs=0.06)


def test_a_mixture_of_experts_agrees_with_draws_roughly() -> None:
    """Each row takes the two experts that its gate prefers, as in Mixtral."""
    g = torch.Generator().manual_seed(0)
    gate, experts = torch.randn(8, 4, generator=g), torch.randn(4, 8, 8, generator=g) / 8**0.5

    def model(x: Any) -> Any:
        weights, chosen = torch.topk((x @ gate).softmax(-1), 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        outputs = torch.stack([torch.tanh(x @ expert) for expert in experts], 1)
        rows = torch.arange(len(x))[:, None]
        return (outputs[rows, chosen] * weights[..., None]).sum(1)

    x = torch.randn(6, 8, generator=g)
    found = propagate(model, x, input_variance=0.01, covariance=False)
    drawn = propagate(model, x, input_variance=0.01, method="sample", samples=2000, seed=0)
    ratio = (found.variance.sqrt().log().mean() - drawn.variance.sqrt().log().mean()).exp()
    assert 0.7 < float(ratio) < 1.3
    assert float((found.loc - drawn.loc).abs().mean() / drawn.variance.sqrt().mean()) < 0.2


def test_a_type_of_dependent_units_keeps_the_dependence() -> None:
    x = factors_of(3)
    values, indices = torch.topk(x, 1, dim=0)  # type: ignore[call-overload]
    assert type(values) is Factors
    assert torch.equal(values.loc, x.loc.gather(0, indices))
    with pytest.raises(MissingRule, match="'argmax'"):
        torch.argmax(x)  # type: ignore[call-overload]
