"""Class posteriors and their losses: torch's options, dimensions, families, compilation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Categorical, Fitted, Logistic, Mean, MissingRule, Normal, Sample, functional
from tests.rules.reductions.posteriors import inputs, log_posterior

TARGETS = torch.tensor([1, 3, -100, 0])
MODULE = nn.CrossEntropyLoss(label_smoothing=0.1)
CALLS: dict[str, Callable[[Any], Any]] = {
    "log_softmax": lambda x: F.log_softmax(x, 1).logits,
    "log_softmax_module": lambda x: nn.LogSoftmax(-1)(x).logits,
    "nll_loss": lambda x: F.nll_loss(F.log_softmax(x, dim=1), TARGETS),
    "cross_entropy": lambda x: F.cross_entropy(x, TARGETS, torch.arange(1.0, 6.0), reduction="sum"),
    "cross_entropy_module": lambda x: MODULE(x, TARGETS),
    "softmax": lambda x: torch.softmax(x, 0).variance,
    "softmax_dtype": lambda x: torch.softmax(x, 1, torch.float64).loc,
    "logistic": lambda x: F.log_softmax(Logistic(x.loc, x.variance), 1).logits,
    "fitted": lambda x: F.log_softmax(Fitted(x.loc, x.variance), 1).exp(),
    "choices": lambda x: (lambda q: (q.argmax(1), q.gather(1, TARGETS[:2, None]), q[1:].logits))(F.log_softmax(x, 1)),
    "fast": lambda x: functional.class_posterior(x, -1, "fast").logits,
    "normal": lambda x: functional.class_posterior(x, -1, "normal").logits,
}


@pytest.mark.full  # `tests/stack/test_compile.py` compiles each rule once
@pytest.mark.parametrize("name", CALLS)
def test_compiled_calls_equal_eager_ones(name: str) -> None:
    torch.compiler.reset()
    differentiated = name in ("cross_entropy", "softmax")
    mean, variance = (part.detach().float().requires_grad_(differentiated) for part in inputs(4, 5))

    def call(mean: Tensor, variance: Tensor) -> Any:
        return CALLS[name](Normal(mean, variance))

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(mean, variance)
    eager = call(mean, variance)
    torch.testing.assert_close(compiled, eager)
    if differentiated:
        grads = [torch.autograd.grad((result * result).sum(), (mean, variance)) for result in (compiled, eager)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_losses_are_those_of_the_posterior_with_all_options() -> None:
    x = Normal(*(part.detach() for part in inputs(4, 5)))
    log_q = F.log_softmax(x, 1).logits
    weight = torch.arange(1.0, 6.0).double()
    soft = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)).double().softmax(-1)
    for options in ({}, {"weight": weight}, {"reduction": "none"}, {"reduction": "sum", "ignore_index": 3}):
        expected = F.nll_loss(log_q, TARGETS.abs() % 5, **options)
        torch.testing.assert_close(F.nll_loss(F.log_softmax(x, 1), TARGETS.abs() % 5, **options), expected)
        torch.testing.assert_close(F.cross_entropy(x, TARGETS.abs() % 5, **options), expected)
    smooth = F.cross_entropy(x, TARGETS, label_smoothing=0.2)
    torch.testing.assert_close(smooth, F.cross_entropy(log_q, TARGETS, label_smoothing=0.2))
    torch.testing.assert_close(F.cross_entropy(x, soft), -(soft * log_q).sum(-1).mean())
    one = Normal(x.loc[0], x.variance[0])
    torch.testing.assert_close(F.cross_entropy(one, torch.tensor(2)), -log_q[0, 2])
    torch.testing.assert_close(F.nll_loss(F.log_softmax(one, 0), torch.tensor(2)), -log_q[0, 2])


def test_segmentation_moves_classes_to_the_end_and_losses_know() -> None:
    x = Normal(*(part.detach() for part in inputs(2, 5, 3, 4)))
    target = torch.randint(5, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    q = F.log_softmax(x, dim=1)
    assert q.shape == (2, 3, 4, 5)
    by_hand = -q.logits.gather(-1, target[..., None]).squeeze(-1)
    torch.testing.assert_close(F.nll_loss(q, target, reduction="none"), by_hand)
    torch.testing.assert_close(F.cross_entropy(x, target), by_hand.mean())
    torch.testing.assert_close(q.argmax(-1), F.softmax(x, 1).loc.argmax(1))
    y = F.softmax(x, 1)
    assert y.shape == x.shape
    torch.testing.assert_close(y.loc.sum(1), torch.ones(2, 3, 4).double())
    torch.testing.assert_close(y.loc[1, :, 2, 3], F.softmax(Normal(x.loc[1, :, 2, 3], x.variance[1, :, 2, 3]), 0).loc)
    with pytest.raises(
        ValueError, match=r"argmax of a Categorical .* the last dimension, but dim is 1: write `dim=-1`"
    ):
        q.argmax(1)


def test_what_a_posterior_allows() -> None:
    q = F.log_softmax(Normal(*(part.detach() for part in inputs(3, 4, 5))), -1)
    rows, classes = torch.tensor([0, 2]), torch.tensor([4, 1])
    assert torch.equal(q.exp(), q.loc)
    assert torch.equal(q.argmax(-1, keepdim=True), q.logits.argmax(-1, keepdim=True))
    assert torch.equal(q[0].argmax(1), q.logits[0].argmax(1))
    assert torch.equal(q.gather(2, torch.zeros(3, 4, 1).long()), q.logits[..., :1])
    for index in (0, rows, slice(1, None), (slice(None), 2), (0, 1), (..., slice(None)), None, q.logits[..., 0] > -1):
        chosen = q[index]
        assert isinstance(chosen, Categorical)
        assert torch.equal(chosen.logits, q.logits[index])
    for index in ((0, 1, 2), (..., 3), (rows, 1, classes), (0, slice(None), slice(2)), q.logits > -1):
        assert torch.equal(q[index], q.logits[index])
    assert q.double().detach().to(torch.float32).clone().cpu().dtype == torch.float32
    assert isinstance(q.detach(), Categorical)
    with pytest.raises(MissingRule, match="no Categorical rule for 'relu'"):
        torch.relu(q)
    with pytest.raises(
        ValueError, match=r"argmax of a Categorical over all dimensions mixes rows: write `argmax\(-1\)`"
    ):
        q.argmax()
    with pytest.raises(ValueError, match=r"gather of a Categorical .* the last dimension, but dim is 0"):
        q.gather(0, rows)


def test_each_family_has_its_own_posterior() -> None:
    mean, variance = (part.detach() for part in inputs(3, 4))
    for family, method in ((Normal, "race"), (Logistic, "logistic"), (Fitted, "simplified")):
        x = family(mean, variance)
        assert torch.equal(F.log_softmax(x, -1).logits, log_posterior(method)(mean, variance))
        assert type(F.softmax(x, -1)) is family
    assert torch.equal(functional.class_posterior(Mean(mean)).logits, mean.log_softmax(-1))
    assert torch.equal(functional.class_posterior(Sample(mean)).loc, mean.softmax(-1))  # to be averaged over draws
    for family in (Mean, Sample):
        assert torch.equal(F.log_softmax(family(mean), -1).loc, mean.log_softmax(-1))
    assert torch.equal(functional.class_posterior(mean, 0).logits, mean.T.log_softmax(-1))
    with pytest.raises(ValueError, match="unknown method 'probit' for a posterior; choose one of race, fast, normal"):
        functional.class_posterior(Normal(mean, 1.0), method="probit")  # type: ignore[arg-type]
