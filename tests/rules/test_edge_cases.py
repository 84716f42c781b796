"""Scalars, empty batches and dimensions, arguments that must be plain: as in torch, or one clear sentence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import AsTensors, MissingRule, Normal

SCALAR = Normal(torch.tensor(1.0), 0.5)
EMPTY = Normal(torch.zeros(2, 0), 0.1)
SCORES = Normal(torch.full((4, 6), 0.3), 0.01)
RANDOM = Normal(torch.full((4, 6), 0.5), 0.01)
LABELS = torch.arange(4)
PLAIN = torch.full((4, 6), 0.5)


@pytest.mark.parametrize("op", ["softmax", "logsumexp", "amax", "amin"])
def test_a_scalar_has_one_dimension_of_one_element_as_in_torch(op: str) -> None:
    function = getattr(torch, op)
    found = function(SCALAR, 0)
    assert found.shape == found.variance.shape == ()
    torch.testing.assert_close(found.loc, function(SCALAR.loc, 0))
    assert found.variance.item() == (0.0 if op == "softmax" else 0.5)


def test_a_class_posterior_needs_classes() -> None:
    with pytest.raises(ValueError, match="'log_softmax' at top level needs a dimension of classes"):
        torch.log_softmax(SCALAR, 0)


@pytest.mark.parametrize("op", ["softmax", "logsumexp", "sum"])
def test_an_empty_dimension_gives_what_torch_gives(op: str) -> None:
    function = getattr(torch, op)
    found = function(EMPTY, 1)
    torch.testing.assert_close(found.loc, function(EMPTY.loc, 1))
    assert not found.variance.any()


@pytest.mark.parametrize("op", ["var", "std", "var_mean", "std_mean", "norm"])
def test_a_statistic_of_no_elements_is_refused(op: str) -> None:
    with pytest.raises(ValueError, match="a statistic at top level"):
        getattr(torch, op)(EMPTY, dim=1)


@pytest.mark.parametrize("op", ["amax", "amin", "max", "min"])
def test_a_maximum_of_no_elements_is_refused(op: str) -> None:
    with pytest.raises(IndexError, match="the maximum at top level is over a dimension of size 0"):
        getattr(torch, op)(EMPTY, 1)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GroupNorm(1, 2), (0, 2, 3)),
        (nn.LayerNorm(2), (0, 2)),
        (nn.InstanceNorm1d(2), (0, 2, 3)),
        (nn.GRU(2, 3), (4, 0, 2)),
        (nn.LSTM(2, 3), (4, 0, 2)),
        (nn.RNN(2, 3), (4, 0, 2)),
        (nn.Conv2d(2, 2, 1), (0, 2, 3, 3)),
        (nn.MaxPool2d(2), (0, 2, 4, 4)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_an_empty_batch_passes_as_in_torch(layer: nn.Module, shape: tuple[int, ...]) -> None:
    def first(output: Any) -> Any:
        return output[0] if isinstance(output, tuple) else output

    found = first(layer(Normal(torch.zeros(shape), 1.0)))
    assert found.shape == found.variance.shape == first(layer(torch.zeros(shape))).shape


def test_a_sequence_without_steps_is_refused_as_in_torch() -> None:
    for x in (torch.zeros(0, 4, 2), Normal(torch.zeros(0, 4, 2), 1.0)):
        with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
            nn.GRU(2, 3)(x)


def test_running_statistics_of_an_empty_instance_norm_stay() -> None:
    layer = nn.InstanceNorm1d(3, track_running_stats=True)
    layer(Normal(torch.zeros(0, 3, 2), 1.0))
    assert layer.running_mean is not None
    assert layer.running_mean.tolist() == [0.0] * 3


LOSSES: dict[str, Callable[[Any], Any]] = {
    "cross_entropy": lambda x: F.cross_entropy(x, RANDOM),
    "cross_entropy, weight": lambda x: F.cross_entropy(x, LABELS, RANDOM[0]),  # type: ignore[index]
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, LABELS, weight=RANDOM[0]),  # type: ignore[index]
    "hinge_embedding_loss": lambda x: F.hinge_embedding_loss(x, RANDOM),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x, PLAIN, RANDOM[:, 0]),  # type: ignore[index]
    "multilabel_soft_margin_loss": lambda x: F.multilabel_soft_margin_loss(x, RANDOM),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, PLAIN, RANDOM),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, PLAIN, pos_weight=RANDOM),
    "mse_loss": lambda x: F.mse_loss(x, PLAIN, weight=RANDOM),
}


@pytest.mark.parametrize("score", [SCORES, PLAIN], ids=["random", "plain"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_random_target_or_weight_of_a_loss_is_refused(name: str, score: Any) -> None:
    with pytest.raises(MissingRule, match=f"no rule for '{name.split(',')[0]}' with a random"):
        LOSSES[name](score)


def test_hinge_embedding_loss_takes_other_targets_as_torch_does() -> None:
    x, target = torch.tensor([0.1, 0.2, 0.3, 5.0]), torch.tensor([1.0, -1.0, 0.0, 2.0])
    found = F.hinge_embedding_loss(Normal(x, 0.0), target, reduction="none")
    torch.testing.assert_close(found, F.hinge_embedding_loss(x, target, reduction="none"))


@pytest.mark.parametrize("labels", [[3, 3, -1, 1], [0, 3, 0, 0], [1, -1, 1, 1], [-1, 0, 0, 0]])
def test_multilabel_margin_loss_counts_a_repeated_label_as_torch_does(labels: list[int]) -> None:
    x, target = torch.tensor([[0.1, 0.2, 0.4, 0.8]]), torch.tensor([labels])
    torch.testing.assert_close(F.multilabel_margin_loss(Normal(x, 0.0), target), F.multilabel_margin_loss(x, target))


NOTHING = torch.full((2, 2), torch.nan)
SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "addmm": lambda x, y: torch.addmm(NOTHING, x, y, beta=0),
    "addmv": lambda x, y: torch.addmv(NOTHING[0], x, y[0], beta=0),
    "addr": lambda x, y: torch.addr(NOTHING, x[0], y[0], beta=0),
    "addbmm": lambda x, y: torch.addbmm(NOTHING, x[None], y[None], beta=0),
    "baddbmm": lambda x, y: torch.baddbmm(NOTHING[None], x[None], y[None], beta=0),
}


@pytest.mark.parametrize("nothing", [torch.nan, torch.inf])
@pytest.mark.parametrize("op", SUMS)
def test_beta_of_zero_ignores_the_summand(op: str, nothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NOTHING", torch.full((2, 2), nothing))
    x, y = Normal(torch.randn(2, 2), 0.1), Normal(torch.randn(2, 2), 0.2)
    for other in (y, y.loc):
        found = SUMS[op](x, other)
        torch.testing.assert_close(found.loc, SUMS[op](x.loc, y.loc))
        assert found.variance.isfinite().all()


def test_lerp_is_exact_at_both_ends() -> None:
    start, end = torch.tensor([1e8]), torch.tensor([1.0])
    for weight in (0.0, 0.3, 0.5, 1.0):
        found: Any = torch.lerp(Normal(start, 0.0), end, weight)
        assert torch.equal(found.loc, torch.lerp(start, end, weight))


def test_prelu_with_random_slopes_has_the_moments_of_draws() -> None:
    torch.manual_seed(0)
    x = Normal(torch.tensor([[-1.0, 0.5, 2.0]]), 0.7)
    slopes = Normal(torch.tensor([0.3, -0.2, 0.1]), 0.5)
    draws, drawn = x.sample(400_000), slopes.sample(400_000)[:, None]
    outputs = draws.clamp(min=0) + drawn * draws.clamp(max=0)
    found: Any = F.prelu(x, slopes)
    error = outputs.std(0) / 400_000**0.5
    assert bool(((found.loc - outputs.mean(0)).abs() < 5 * error).all())
    torch.testing.assert_close(found.variance, outputs.var(0), rtol=0.02, atol=0.0)
    certain: Any = F.prelu(x.loc, slopes)
    torch.testing.assert_close(certain.variance, torch.tensor([[0.5, 0.0, 0.0]]))


def test_masked_fill_of_a_plain_tensor_leaves_the_rest_certain() -> None:
    found: Any = torch.ones(3).masked_fill(torch.tensor([True, False, True]), SCALAR)  # type: ignore[arg-type]
    assert found.loc.tolist() == [1.0, 1.0, 1.0]
    assert found.variance.tolist() == [0.5, 0.0, 0.5]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_model_of_tensors_can_be_traced() -> None:
    model = AsTensors(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.Sigmoid()))
    traced = torch.jit.trace(model, (torch.randn(1, 2), torch.rand(1, 2)))
    given: tuple[Tensor, Tensor] = (torch.randn(5, 2), torch.rand(5, 2))
    for found, wanted in zip(traced(*given), model(*given), strict=True):
        torch.testing.assert_close(found, wanted)
