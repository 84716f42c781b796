"""What users give: torch's distributions, deviations, and keywords that nobody takes."""

from typing import Any

import pytest
import torch
from torch import distributions, nn

import momentprop
from momentprop import Joint, Normal, calibrate, calibrated, check, propagate
from tests.values.every import assert_same

LOC, SCALE = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([0.3, 0.2, 0.1])
COVARIANCE = torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 0.5]])


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).eval().requires_grad_(False)


# Distributions


@pytest.mark.parametrize(("given", "variance"), [
    (distributions.Normal(LOC, SCALE), SCALE**2),
    (distributions.Independent(distributions.Normal(LOC, SCALE), 1), SCALE**2),
    (distributions.Laplace(LOC, SCALE), 2 * SCALE**2),
    (distributions.Uniform(LOC - SCALE, LOC + SCALE), SCALE**2 / 3),
    (distributions.StudentT(5.0, LOC, SCALE), 5 / 3 * SCALE**2),
])  # fmt: skip
def test_a_distribution_passes_a_model_by_its_moments(given: Any, variance: torch.Tensor) -> None:
    model = _model()
    found, wanted = (propagate(model, x, covariance=False) for x in (given, Normal(LOC, variance)))
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.variance, wanted.variance)
    torch.testing.assert_close(
        propagate(lambda x, extra: model(x) + extra, given, extra=torch.ones(2)).loc, wanted.loc + 1
    )


def test_draws_are_of_the_distribution_and_not_of_its_moments() -> None:
    given = distributions.Uniform(LOC - SCALE, LOC + SCALE)
    for model in (lambda x: 1.0 * x, nn.Identity()):
        drawn = propagate(model, given, method="sample", samples=2000, seed=0)
        assert ((drawn.draws - LOC).abs() <= SCALE).all()
        assert ((drawn.variance - SCALE**2 / 3).abs() < 5 * drawn.variance_error).all()
    coins = distributions.Independent(distributions.Bernoulli(torch.full((3,), 0.3)), 1)
    assert set(propagate(nn.Identity(), coins, method="sample", samples=50).draws.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("given", [
    distributions.MultivariateNormal(LOC, COVARIANCE),
    distributions.LowRankMultivariateNormal(LOC, torch.tensor([[1.0], [0.5], [0.0]]), SCALE),
])  # fmt: skip
def test_a_correlated_distribution_keeps_its_correlation(given: Any) -> None:
    y = propagate(lambda x: x[..., 0] - x[..., 1], given)
    covariance = given.covariance_matrix
    torch.testing.assert_close(y.variance, covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    with pytest.raises(TypeError, match=r"depend on each other.*write `momentprop.Joint.from_distribution"):
        Normal.from_distribution(given)


def test_a_distribution_that_is_given_twice_is_one_variable() -> None:
    x = distributions.Normal(LOC, SCALE)
    assert torch.equal(propagate(lambda a, b: a - b, x, x).variance, torch.zeros(3))


@pytest.mark.parametrize(("given", "error", "match"), [
    (distributions.Cauchy(LOC, SCALE), ValueError, "this Cauchy has no finite mean and variance"),
    (distributions.StudentT(2.0, LOC, SCALE), ValueError, "this StudentT has no finite mean and variance"),
    (distributions.Categorical(logits=LOC), ValueError, "this Categorical has no finite mean"),
    (distributions.Dirichlet(LOC.abs()), TypeError, r"units of a Dirichlet depend .*Joint.from_covariance\(mean"),
    (distributions.TransformedDistribution(distributions.Normal(LOC, SCALE), []), TypeError, "torch does not know"),
])  # fmt: skip
def test_a_distribution_without_what_it_takes_is_refused(given: Any, error: Any, match: str) -> None:
    for call in (Normal.from_distribution, lambda x: propagate(_model(), x)):
        with pytest.raises(error, match=match):
            call(given)


def test_a_constructor_says_how_to_convert() -> None:
    with pytest.raises(TypeError, match=r"loc must be a tensor, but is a torch Normal: write `from_distribution"):
        Normal(distributions.Normal(LOC, SCALE), 0.1)


def test_results_become_distributions() -> None:
    x = Normal(LOC, SCALE**2)
    torch.testing.assert_close(x.distribution().scale, SCALE)
    joint = Joint.from_covariance(LOC, COVARIANCE)
    torch.testing.assert_close(joint.distribution().covariance_matrix, COVARIANCE)
    drawn = propagate(lambda x: x, x, method="sample", samples=50, seed=0)
    torch.testing.assert_close(drawn.distribution().variance, drawn.variance)
    together = propagate(lambda x: x, x, method="sample", samples=50, seed=0, covariance=True, batch_dim=None)
    torch.testing.assert_close(together.distribution().covariance_matrix, together.covariance)
    batch = propagate(lambda x: x, LOC[None], input_variance=0.1, method="sample", samples=50, covariance=True)
    with pytest.raises(ValueError, match="items of an estimate may lie along any dimension"):
        batch.distribution()


# Deviations


def test_a_deviation_is_a_variance_to_every_call() -> None:
    model, x = _model(), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    for std, variance in ((0.5, 0.25), (SCALE, SCALE**2)):
        assert_same(
            propagate(model, x, input_std=std, covariance=False),
            propagate(model, x, input_variance=variance, covariance=False),
        )
    fits = [calibrate(model, x, **given, samples=50) for given in ({"input_std": 0.5}, {"input_variance": 0.25})]
    assert torch.equal(fits[0].numbers, fits[1].numbers)
    assert fits[0].noise == calibrate(model, x, input_std=[0.5], samples=50).noise
    assert_same(calibrated(model, fits[0], input_std=0.5)(x), calibrated(model, fits[1], input_variance=0.25)(x))
    ones = [check(model, x, **given, samples=50)["output"].methods["ap2"] for given in
            ({"input_std": 0.5}, {"input_variance": 0.25})]  # fmt: skip
    assert ones[0].eps_mean == ones[1].eps_mean


def test_distributions_are_calibrated_and_checked() -> None:
    model, x = _model(), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    given, value = distributions.Normal(x, 0.5), Normal(x, 0.25)
    fit = calibrate(model, given, samples=50)
    assert torch.equal(fit.numbers, calibrate(model, value, samples=50).numbers)
    assert_same(calibrated(model, fit)(given), calibrated(model, fit)(value))
    ones = [check(model, each, samples=50)["output"].methods["ap2"].eps_mean for each in (given, value)]
    assert ones[0] == ones[1]


def test_a_deviation_is_checked() -> None:
    with pytest.raises(TypeError, match="input_variance and input_std were given"):
        propagate(_model(), LOC, input_variance=0.1, input_std=0.1)
    with pytest.raises(ValueError, match="input_std must be non-negative"):
        propagate(_model(), LOC, input_std=-0.1)


# Keywords


@pytest.mark.parametrize(("given", "meant"), [
    ({"input_varience": 0.1}, "input_variance"), ({"variance": 0.1}, "input_variance"), ({"std": 0.1}, "input_std"),
    ({"sample": 100}, "samples"), ({"drop_out": True}, "dropout"), ({"inputs": LOC}, "input"),
])  # fmt: skip
def test_a_misspelt_keyword_is_told(given: dict[str, Any], meant: str) -> None:
    with pytest.raises(TypeError, match=f"neither `propagate` nor the model takes .*did you mean `{meant}`"):
        propagate(_model(), LOC, **given)


def test_keywords_of_the_model_reach_it() -> None:
    with pytest.raises(TypeError, match=r"neither `check` nor the model takes the keyword 'zzz'$"):
        check(_model(), LOC, zzz=1)
    assert propagate(_model(), input=LOC, input_variance=0.1).shape == (2,)
    assert propagate(lambda x, **more: x + more["shift"], LOC, input_variance=0.1, shift=1.0).shape == (3,)
    assert propagate(lambda x, *, scale: x * scale, LOC, input_variance=0.1, scale=2.0).shape == (3,)
    assert propagate(torch.clamp, LOC, input_variance=0.1, min=0.0).shape == (3,)


# Nothing random


@pytest.mark.parametrize("given", [
    {}, {"covariance": False}, {"method": "sample", "samples": 5}, {"method": "linear"}, {"method": "full"},
    {"record": True}, {"probes": 2}, {"family": "logistic"},
])  # fmt: skip
def test_a_call_in_which_nothing_is_random_warns(given: dict[str, Any]) -> None:
    with pytest.warns(
        momentprop.NothingRandomWarning, match="^nothing is random in this call.*`input_variance=`"
    ) as told:
        propagate(_model(), LOC, **given)
    assert [each.filename for each in told] == [__file__]


def test_dropout_that_finds_none_warns() -> None:
    with pytest.warns(momentprop.NothingRandomWarning, match="the model has no dropout for `dropout=True` to turn"):
        propagate(_model(), LOC, dropout=True)


class _NoisyAside(nn.Module):
    """Its output does not depend on its noise, which is at a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        self.dropout(x)
        return 2 * x


@pytest.mark.parametrize(("model", "given"), [
    (_model(), {"method": "ap1"}), (_model(), {"input_variance": 0.0}), (_model(), {"input_std": 0.0}),
    (nn.Dropout(0.5).train(), {}), (nn.Dropout(0.5).eval(), {"dropout": True}),
    (momentprop.nn.AdditiveNoise("normal").train(), {}), (lambda x: x.argmax(-1), {}),
    (_NoisyAside().eval(), {"dropout": True, "record": True}),
    (lambda x: x + torch.randn(3), {"method": "sample", "samples": 5}),
])  # fmt: skip
def test_a_call_with_noise_does_not_warn_nor_one_that_means_none(model: Any, given: dict[str, Any]) -> None:
    propagate(model, LOC, **given)
    if given.get("method") is None:
        propagate(model, Normal(LOC, 0.0))


# Results are not mistaken for tensors


def test_the_spread_over_units_is_not_the_deviation() -> None:
    for value in (Normal(LOC, 0.1), Joint(LOC, 0.1)):
        for method, component in (("std", "stddev"), ("var", "variance")):
            with pytest.warns(UserWarning, match=rf"`.{method}\(\)` measures how the units differ.*`.{component}`"):
                found = getattr(value, method)(-1)
            assert_same(found, getattr(torch, method)(value, -1))

    class Standardized(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)

    Standardized()(Normal(LOC, 0.1))
    propagate(lambda x: x.std(-1), LOC, input_variance=0.1)


@pytest.mark.parametrize("name", ["item", "numpy", "tolist"])
def test_a_conversion_says_which_component_to_take(name: str) -> None:
    written = {"numpy": r"detach\(\).numpy"}.get(name, name)
    estimate = propagate(lambda x: x, LOC, input_variance=0.1, method="sample", samples=5)
    for value in (Normal(1.0, 0.1), Joint(LOC, 0.1), estimate):
        with pytest.raises(
            momentprop.MissingRule, match=rf"`value.loc.{written}\(\)` for the mean, or `value.variance"
        ):
            getattr(value, name)()


def test_a_value_is_no_number() -> None:
    for convert in (float, int):
        with pytest.raises(TypeError, match=r"a Normal cannot become .* write `value.loc.item\(\)` for the mean"):
            convert(Normal(1.0, 0.1))
    assert float(momentprop.Mean(2.5)) == 2.5
    assert int(momentprop.Mean(2.5)) == 2


def test_a_missing_rule_names_the_fallbacks() -> None:
    with pytest.raises(momentprop.MissingRule, match=r"'quadrature'.*'monte_carlo'.*'linearize'"):
        propagate(torch.atan, LOC, input_variance=0.1)


def test_an_estimate_says_where_operations_belong() -> None:
    estimate = propagate(lambda x: x, LOC, input_variance=0.1, method="sample", samples=5)
    with pytest.raises(momentprop.MissingRule, match=r"no Estimate rule for 'relu' .*outputs=lambda y"):
        torch.relu(estimate)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dropout": 0.1}, "must be True or False, but is 0.1: True turns on"),
        ({"covariance": "no"}, "must be True, False or None, but is 'no'"),
        ({"covariance": torch.eye(2)}, "but is a Tensor: give the covariance of the input as `input_covariance=`"),
        ({"calibration": "a.safetensors"}, r"is a str: write `momentprop.Calibration.load\('a.safetensors'\)`"),
        ({"weights": True}, "must be a variance or a Normal, but is a bool"),
    ],
)
def test_flags_and_variances_are_not_mixed_up(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        propagate(nn.Linear(2, 1), torch.zeros(1, 2), input_variance=0.1, **given)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.zeros(1, 2), torch.zeros(1, 2)), r"must be a module or a function, but is a Tensor: write `propagate"),
        ((torch.relu, nn.Linear(2, 1)), "the argument is a Linear: write the model first"),
        ((torch.relu, torch.zeros(1, 2).numpy()), r"is a numpy array: write `torch.as_tensor\(x, dtype"),
        ((torch.relu, [[0.0] * 9]), r"the argument is a float: write `torch.as_tensor\(x, dtype"),
        ((nn.Embedding(3, 2), torch.tensor([1])), "or, for the ids of tokens, give noise to their embeddings"),
    ],
)
def test_arguments_that_cannot_be_random_are_told_what_to_be(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        propagate(*args, input_variance=0.1)


@pytest.mark.parametrize(
    ("x", "given", "message"),
    [
        (torch.zeros(5, 2), torch.ones(5), r"one number for each item has the shape \(5, 1\)"),
        (torch.zeros(4, 3, 8, 8), torch.ones(3), r"one number for each channel has the shape \(3, 1, 1\)"),
        (torch.tensor([[0.0, torch.nan]]), 0.1, "for missing inputs see `momentprop.Normal.missing`"),
    ],
)
def test_noise_of_another_shape_and_gaps_are_told_what_to_be(x: torch.Tensor, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        propagate(torch.relu, x, input_variance=given)


@pytest.mark.parametrize("probes", [1, -1, 1.5, True])
def test_probes_are_a_whole_number(probes: Any) -> None:
    with pytest.raises(ValueError, match="a whole number from 2 on"):
        propagate(torch.relu, torch.zeros(1, 2), input_variance=0.1, probes=probes)


def test_draws_without_a_covariance_say_how_to_get_one() -> None:
    drawn = propagate(lambda x: x, LOC, input_variance=0.1, method="sample", samples=5)
    with pytest.raises(AttributeError, match="has no attribute 'covariance': draw with `covariance=True`"):
        _ = drawn.covariance
    with pytest.raises(AttributeError, match=r"has no attribute 'scale'$"):
        _ = drawn.scale
    drawn = propagate(lambda x: x, LOC[None], input_variance=0.1, method="sample", samples=5, covariance=True)
    assert drawn.covariance.shape == (1, 3, 3)
