"""Class probabilities, entropies, mutual information and labels, against draws, a grid and algebra."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Categorical, Estimate, Joint, Logistic, Mean, Normal, kept_draws, propagate
from momentprop.kernels.information import mutual_information
from tests.values.joints import joint_of

LOC = torch.tensor([[2.0, 0.0, -1.0], [0.3, 0.1, 0.2], [4.0, 3.9, -3.0]])
VARIANCE = torch.tensor([[4.0, 1.0, 0.5], [0.01, 0.02, 0.0], [9.0, 0.1, 3.0]])
DRAWS = 20_000


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)


def _truth(draws: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The class posterior, its entropy, the mutual information, and the standard error of what these average."""
    p = F.softmax(draws, -1)
    q = p.mean(0)
    apart = (p * (p / q).log()).sum(-1)
    error = torch.maximum(p.std(0).amax(-1), apart.std(0)) / len(draws) ** 0.5
    return q, _entropy(q), _entropy(q) - _entropy(p).mean(0), error


def _results() -> dict[str, Any]:
    joint = joint_of(3, 3, own=0.5)
    return {
        "Normal": Normal(LOC, VARIANCE),
        "Joint": Joint(LOC, VARIANCE, torch.tensor([2.0, -1.0, 1.0]).expand(1, 3, 3).contiguous()),
        "Joint of factors": joint,
        "lazy Joint": Joint.from_covariance(joint.loc, joint.covariance),
    }


@pytest.mark.parametrize("name", _results())
def test_scores_answer_as_their_draws_do(name: str) -> None:
    scores = _results()[name]
    q, entropy, information, error = _truth(scores.sample(DRAWS, generator=torch.Generator().manual_seed(0)))
    assert ((scores.probabilities() - q).abs() < 5 * error[:, None] + 1e-5).all()
    assert ((scores.entropy() - entropy).abs() < 20 * error + 1e-5).all()  # it bends with the posterior
    assert ((scores.mutual_information() - information).abs() < 10 * error + 1e-4).all()
    assert torch.equal(scores.predict(-1), scores.probabilities().argmax(-1))
    assert torch.equal(scores.predict(), scores.loc)


@pytest.mark.parametrize("name", _results())
def test_the_posterior_answers_as_the_scores_do(name: str) -> None:
    scores = _results()[name]
    q = F.log_softmax(scores, -1)
    torch.testing.assert_close(q.probabilities(), scores.probabilities())
    torch.testing.assert_close(q.entropy(), scores.entropy())
    torch.testing.assert_close(q.mutual_information(), scores.mutual_information())
    assert torch.equal(q.predict(), scores.predict(-1))


def test_the_entropy_is_that_of_the_noise_and_of_the_network_together() -> None:
    scores = Normal(LOC, VARIANCE)
    information = scores.mutual_information()
    assert (information >= 0).all()
    assert (information < scores.entropy()).all()
    certain = Normal(LOC, 0.0)
    assert torch.equal(certain.mutual_information(), torch.zeros(3))
    torch.testing.assert_close(certain.entropy(), _entropy(F.softmax(LOC, -1)))


def test_small_noise_gives_the_information_of_second_order() -> None:
    """Half the variance of the scores under the posterior: small numbers do not cancel."""
    p = F.softmax(LOC[0], -1)
    wanted = 0.5 * (p * (1 - p) * VARIANCE[0]).sum() * 1e-4
    torch.testing.assert_close(Normal(LOC[0], 1e-4 * VARIANCE[0]).mutual_information(), wanted, rtol=2e-3, atol=1e-9)


def test_two_classes_have_the_information_of_an_integral() -> None:
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    for deviation in (0.1, 1.0, 5.0):
        p = torch.sigmoid(0.7 + deviation * z)
        both = torch.stack([p, 1 - p], -1)
        wanted = _entropy((weight[:, None] * both).sum(0)) - (weight * _entropy(both)).sum()
        found = Normal(torch.tensor([0.7, 0.0]), torch.tensor([deviation**2, 0.0])).mutual_information()
        assert float(found) == pytest.approx(float(wanted), abs=1e-4)


def test_what_all_scores_share_tells_nothing_of_the_class() -> None:
    scores = Joint(LOC, 0.0, torch.full((1, 3, 3), 5.0))
    torch.testing.assert_close(scores.mutual_information(), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.probabilities(), F.softmax(LOC, -1))


def test_derivatives_of_the_information_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    root = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda loc, root: mutual_information(loc, root @ root.mT, 1 << 15), (loc, root), eps=1e-4, atol=3e-3, rtol=3e-3
    )
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.functional.hessian(lambda loc: mutual_information(loc, torch.eye(3).double()).sum(), loc[:1])


def test_an_excluded_class_has_no_part() -> None:
    scores = Joint(torch.tensor([1.0, -math.inf, 0.0]), torch.tensor([1.0, 0.0, 2.0]), validate_args=False)
    rest = Normal(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(scores.mutual_information(), rest.mutual_information(), atol=1e-4, rtol=0)
    torch.testing.assert_close(scores.entropy(), rest.entropy(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [Normal, Joint, Mean])
def test_classes_may_lie_along_any_dimension(kind: Any) -> None:
    moments = (LOC.mT,) if kind is Mean else (LOC.mT, VARIANCE.mT.contiguous())
    along = kind(*moments, batch_dim=1) if kind is Joint else kind(*moments)
    last = kind(LOC) if kind is Mean else kind(LOC, VARIANCE)
    torch.testing.assert_close(along.probabilities(0), last.probabilities(-1).mT)
    torch.testing.assert_close(along.entropy(0), last.entropy())
    torch.testing.assert_close(along.mutual_information(0), last.mutual_information())
    assert torch.equal(along.predict(0), last.predict(-1))


def test_means_answer_as_a_plain_network_does() -> None:
    mean = Mean(LOC)
    torch.testing.assert_close(mean.probabilities(), F.softmax(LOC, -1))
    assert torch.equal(mean.mutual_information(), torch.zeros(3))
    assert torch.equal(mean.predict(-1), LOC.argmax(-1))


# Draws


@pytest.mark.parametrize("covariance", [None, True])
def test_an_estimate_answers_by_its_draws(covariance: bool | None) -> None:
    given = {"input_variance": VARIANCE, "method": "sample", "samples": DRAWS, "seed": 0, "covariance": covariance}
    drawn = propagate(lambda x: x * 1.0, LOC, **given)
    q, entropy, information, _ = _truth(drawn.draws)
    torch.testing.assert_close(drawn.probabilities(), q)
    torch.testing.assert_close(drawn.entropy(), entropy)
    torch.testing.assert_close(drawn.mutual_information(), information, atol=1e-5, rtol=1e-4)
    assert torch.equal(drawn.argmax(-1), drawn.predict(-1))
    torch.testing.assert_close(drawn.draws.mean(0), drawn.loc)


def test_the_interval_of_draws_holds_them() -> None:
    drawn = propagate(lambda x: x.exp(), LOC, input_variance=0.5, method="sample", samples=1000, seed=0)
    low, high = drawn.interval(0.9)
    held = ((drawn.draws >= low) & (drawn.draws <= high)).float().mean(0)
    assert ((held - 0.9).abs() < 2e-3).all()
    assert (low > 0).all()  # which a normal interval would not know


def test_draws_are_kept_while_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_draws, "LIMIT", 2 * 100)
    given: dict[str, Any] = {"input_variance": 0.1, "method": "sample", "samples": 100, "seed": 0}
    first, second = propagate(lambda x: (x, x[:1]), torch.zeros(2), **given)
    assert first.draws.shape == (100, 2)
    assert second.draws is None
    with pytest.raises(ValueError, match="this Estimate has no draws, because there were too many to keep"):
        second.probabilities()
    with pytest.raises(ValueError, match="has no draws"):
        copy.deepcopy(first).entropy()
    low, high = second.interval(0.5)
    torch.testing.assert_close(high - low, 2 * 0.6744897501960817 * second.stddev)


def test_an_estimate_is_indexed_as_a_tensor_with_its_draws() -> None:
    drawn = propagate(lambda x: x * 1.0, LOC, input_variance=VARIANCE, method="sample", samples=500, seed=0)
    for index in (1, -1, slice(1, 3), (0, 2), (..., 1), [2, 0], LOC[:, 0] > 1, torch.tensor([1])):
        chosen = drawn[index]
        assert type(chosen) is Estimate
        for part in ("loc", "variance", "loc_error", "variance_error"):
            assert torch.equal(getattr(chosen, part), getattr(drawn, part)[index])
        assert torch.equal(chosen.draws, torch.stack([draw[index] for draw in drawn.draws]))
    torch.testing.assert_close(drawn[1].probabilities(), drawn.probabilities()[1])
    assert [row.predict(-1).item() for row in drawn] == drawn.predict(-1).tolist()
    copied = copy.deepcopy(drawn)[0]
    assert copied.draws is None
    joint = propagate(lambda x: x, LOC, input_variance=0.1, method="sample", samples=9, seed=0, covariance=True)
    assert type(joint[0]) is Estimate


# What is refused


def test_a_model_that_ends_in_a_softmax_answers_too() -> None:
    probabilities = F.softmax(LOC, -1)
    variance = 0.1 * probabilities * (1 - probabilities)
    for result in (
        Normal(probabilities, variance),
        Joint(probabilities, variance),
        Normal(probabilities.mT, variance.mT),
    ):
        dim = -1 if torch.equal(result.loc, probabilities) else 0
        assert torch.equal(result.predict(dim), result.loc.argmax(dim))
        torch.testing.assert_close(result.probabilities(dim), result.loc)
        torch.testing.assert_close(result.entropy(dim), _entropy(probabilities))
        with pytest.raises(ValueError, match=r"the model ends in a softmax, .* leave the softmax out of the model"):
            result.mutual_information(dim)
    drawn = propagate(lambda x: x.softmax(-1), LOC, input_variance=0.1, method="sample", samples=50, seed=0)
    scores = propagate(lambda x: x, LOC, input_variance=0.1, method="sample", samples=50, seed=0)
    logs = propagate(lambda x: x.log_softmax(-1), LOC, input_variance=0.1, method="sample", samples=50, seed=0)
    for result in (drawn, logs):
        torch.testing.assert_close(result.probabilities(), scores.probabilities())
        torch.testing.assert_close(result.entropy(), scores.entropy())
        torch.testing.assert_close(result.mutual_information(), scores.mutual_information(), atol=1e-6, rtol=1e-4)
    assert torch.equal(drawn.predict(-1), drawn.loc.argmax(-1))
    assert torch.equal(drawn.argmax(-1), drawn.loc.argmax(-1))
    torch.testing.assert_close(copy.deepcopy(drawn).entropy(), drawn.entropy())


@pytest.mark.parametrize("covariance", [True, False])
@pytest.mark.parametrize("last", ["softmax", "log_softmax"])
def test_a_softmax_at_the_end_of_a_model_changes_no_probabilities(covariance: bool, last: str) -> None:
    given: dict[str, Any] = {"input_variance": 0.3, "covariance": covariance}
    scores = propagate(lambda x: 2 * x, LOC, **given)
    found = propagate(lambda x: getattr(2 * x, last)(-1), LOC, **given)
    torch.testing.assert_close(found.probabilities(), scores.probabilities(), atol=0.02, rtol=0.02)
    assert torch.equal(found.predict(-1), scores.predict(-1))
    torch.testing.assert_close(found.entropy(), scores.entropy(), atol=0.02, rtol=0.05)
    if last == "log_softmax":
        torch.testing.assert_close(found.mutual_information(), scores.mutual_information())


def test_scores_that_sum_to_one_are_taken_for_what_their_variances_allow() -> None:
    loc = torch.tensor([0.2, 0.8])
    with pytest.warns(
        UserWarning, match="their variances are too large for probabilities, so that they are taken as logits"
    ):
        found = Normal(loc, 1.0).probabilities()
    torch.testing.assert_close(found, Normal(loc - 1, 1.0).probabilities())
    for certain in (Normal(loc, 0.0), Mean(loc)):
        with pytest.warns(
            UserWarning, match=r"they are taken as probabilities: if they are logits, write `y.loc.softmax"
        ):
            assert torch.equal(certain.probabilities(), loc)
    Normal(torch.tensor([1.0, 0.0]), 1.0).probabilities()  # these are scores, without a warning


def test_the_label_of_certain_scores_is_that_of_torch_also_where_probabilities_are_equal() -> None:
    for loc in (torch.tensor([[1e-9, 2e-9, 0.0]]), torch.tensor([[-1e4, 3e4, 3e4 + 1.0]]), torch.zeros(2, 4)):
        for scores in (Normal(loc, 0.0), Joint(loc, 0.0), Mean(loc)):
            assert torch.equal(scores.predict(-1), loc.argmax(-1))


def test_more_classes_than_matrices_can_hold_are_refused() -> None:
    scores = Normal(torch.zeros(2, 1025), 1.0)
    assert scores.probabilities().shape == (2, 1025)
    with pytest.raises(ValueError, match="for at most 1024 classes, but there are 1025: use draws"):
        scores.mutual_information()


def test_fewer_points_may_be_chosen() -> None:
    scores = Normal(LOC, VARIANCE)
    torch.testing.assert_close(
        scores.mutual_information(points=1 << 12), scores.mutual_information(), atol=3e-3, rtol=0
    )


def test_a_posterior_says_what_it_does_not_know() -> None:
    q = Categorical(LOC)
    with pytest.raises(ValueError, match="does not know the random scores"):
        q.mutual_information()
    with pytest.raises(ValueError, match="classes of a Categorical lie along the last dimension, but dim is 0"):
        q.entropy(0)
    with pytest.raises(TypeError, match="a class has no interval"):
        q.interval()


def test_the_family_chooses_the_posterior() -> None:
    x = Logistic(LOC, VARIANCE)
    torch.testing.assert_close(x.probabilities(), F.log_softmax(x, -1).loc)


def test_one_class_score_is_told():
    with pytest.warns(UserWarning, match=r"one class score.*torch.sigmoid"):
        assert Normal(torch.zeros(3, 1), 1.0).probabilities().eq(1).all()


@pytest.mark.parametrize("options", [{}, {"covariance": True}])
def test_draws_are_converted_with_their_moments(options: dict[str, Any]) -> None:
    y = propagate(lambda x: x, LOC, input_variance=0.1, method="sample", samples=50, seed=0, **options)
    for found in (y.cpu(), y.to("cpu"), y.detach(), y.clone(), y.contiguous(), y.float()):
        assert type(found) is type(y)
        assert torch.equal(found.draws, y.draws)
        assert torch.equal(found.entropy(), y.entropy())
    double = y.to(torch.float64)
    assert {part.dtype for part in (*double.parts, double.draws)} == {torch.float64}
    torch.testing.assert_close(double.mutual_information().float(), y.mutual_information())
    with pytest.raises(TypeError, match=r"an \w*Estimate cannot have elements of torch.int64: convert `.loc` alone"):
        y.to(torch.int64)


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample", "full", "linear"])
def test_every_result_can_be_moved_and_converted(method: Any) -> None:
    y = propagate(lambda x: 2 * x, LOC, input_variance=0.1, method=method, **_few(method))
    posterior = propagate(lambda x: x.log_softmax(-1), LOC, input_variance=0.1)
    for found in (y, posterior):
        for name in ("cpu", "detach", "clone", "float", "contiguous"):
            assert type(getattr(found, name)()) is type(found), name
        assert found.to(torch.float64).dtype == found.double().dtype == torch.float64
        assert found.half().dtype == found.to(torch.float16).dtype == torch.float16
        assert found.bfloat16().dtype == torch.bfloat16


def _few(method: str) -> dict[str, Any]:
    return {"samples": 10} if method == "sample" else {}
