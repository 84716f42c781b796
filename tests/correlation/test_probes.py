"""Tests of probes: random directions that correct AP2 for the dependence of units."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import momentprop
from momentprop import Joint, Normal

Model = Callable[[Tensor], Any]


def _mixed(*sizes: int, seed: int = 0) -> list[Tensor]:
    """Return weights between layers of some sizes; models make them while they run, when drawing would be warned of."""
    angles = [torch.arange(m * n, dtype=torch.float64) ** 2 + seed + i for i, (m, n) in enumerate(pairwise(sizes))]
    return [a.sin().reshape(m, n) * math.sqrt(2 / m) for a, (m, n) in zip(angles, pairwise(sizes), strict=True)]


def _inputs(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _draws(model: Model, x: Tensor, variance: float, count: int = 4000) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn((count, *x.shape), generator=generator, dtype=x.dtype)
    with torch.no_grad():
        return torch.stack([model(x + math.sqrt(variance) * each) for each in noise])


def _error_of_mean(found: Any, draws: Tensor) -> float:
    return float(((found.loc.detach() - draws.mean(0)).abs() / draws.std(0)).mean())


def _log_ratio(found: Any, draws: Tensor) -> Tensor:
    return 0.5 * (found.variance.detach() / draws.var(0)).log()


def test_no_probes_are_ap2() -> None:
    (w,) = _mixed(4, 3)
    x = _inputs(2, 4)
    model = lambda x: torch.relu(x @ w)  # noqa: E731
    plain = momentprop.propagate(model, x, input_variance=0.3, covariance=False)
    none = momentprop.propagate(model, x, input_variance=0.3, covariance=False, probes=0)
    assert torch.equal(plain.loc, none.loc)
    assert torch.equal(plain.variance, none.variance)


def test_variances_of_a_linear_network_are_unbiased() -> None:
    first, second = _mixed(5, 8, 3)
    x = _inputs(1, 5)
    exact = 0.3 * ((first @ second) ** 2).sum(0)
    model = lambda x: x @ first @ second  # noqa: E731
    found = [
        momentprop.propagate(model, x, input_variance=0.3, covariance=False, probes=8, seed=seed).variance.sum()
        for seed in range(200)
    ]
    ratios = torch.stack(found) / exact.sum()
    assert abs(float(ratios.mean()) - 1) < 4 * float(ratios.std()) / math.sqrt(len(found))


def test_the_error_of_the_raw_variance_is_that_of_so_many_draws() -> None:
    (w,) = _mixed(6, 1)
    x = _inputs(1, 6)
    exact = 0.3 * (w**2).sum()
    model = lambda x: (x @ w).expand(-1, 2)[:, :1] + 0.0 * x[:, :1]  # noqa: E731
    for count in (8, 32):
        found = [
            momentprop.propagate(model, x, input_variance=0.3, covariance=False, probes=count, seed=seed).variance.sum()
            for seed in range(200)
        ]
        error = float((torch.stack(found) / exact - 1).square().mean().sqrt())
        assert abs(error / math.sqrt(2 / count) - 1) < 0.2  # 4 errors of a deviation from 200 values


def test_probes_depend_on_the_seed_alone() -> None:
    (w,) = _mixed(4, 3)
    x = _inputs(2, 4)
    model = lambda x: torch.tanh(x @ w) @ w.T  # noqa: E731

    def run(seed: int) -> Any:
        return momentprop.propagate(model, x, input_variance=0.3, covariance=False, probes=4, seed=seed)

    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = run(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    assert torch.equal(one.variance, run(3).variance)
    assert not torch.equal(one.variance, run(4).variance)


def test_an_item_does_not_depend_on_the_others() -> None:
    (w,) = _mixed(4, 3)
    x = _inputs(3, 4)
    model = lambda x: torch.relu(x @ w) @ w.T  # noqa: E731
    whole = momentprop.propagate(model, x, input_variance=0.3, probes=8)
    first = momentprop.propagate(model, x[:1], input_variance=0.3, probes=8)
    torch.testing.assert_close(whole.loc[:1], first.loc)
    torch.testing.assert_close(whole.covariance[:1], first.covariance)


def test_pieces_of_a_batch_give_what_the_batch_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _mixed(6, 32, 3)
    x = _inputs(8, 6)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3)).double().eval()
    with torch.no_grad():
        model[0].weight.copy_(first.T)
        model[3].weight.copy_(second.T)
        noise: dict[str, Any] = {"input_variance": 0.3, "dropout": True, "probes": 8}
        whole = momentprop.propagate(model, x, **noise)
        expected = whole.covariance
        monkeypatch.setattr("momentprop.joint_outputs.MEMORY", 2**16)
        pieces = momentprop.propagate(model, x, **noise)
        torch.testing.assert_close(pieces.loc, whole.loc)
        torch.testing.assert_close(pieces.covariance, expected)


def test_items_are_apart_where_only_dropout_acts() -> None:
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
    x = _inputs(3, 6)
    with torch.no_grad():
        whole = momentprop.propagate(model, x, dropout=True, covariance=False, probes=8)
        first = momentprop.propagate(model, x[:1], dropout=True, covariance=False, probes=8)
    torch.testing.assert_close(whole.variance[:1], first.variance)


def _in_place(x: Any) -> Any:
    first, second = _mixed(6, 6, 4)
    y = x @ first
    half = y[:, :3]
    half.mul_(2.0)
    half.tanh_()
    y[:, 3:] = y[:, 3:] + half
    return y.view(len(x), 2, 3).flatten(1).relu_() @ second


def _residual(x: Any) -> Any:
    first, second, third = _mixed(6, 6, 6, 4, seed=3)
    y = x @ first
    return (y + F.gelu(y @ second) + y * torch.sigmoid(y)) @ third


def _by_hand(x: Any) -> Any:
    query, key, value = _mixed(6, 6, 6, 6, seed=4)
    x = x.unflatten(-1, (3, 2)) @ _mixed(2, 6, seed=5)[0]
    return (torch.softmax((x @ query) @ (x @ key).mT / 6**0.5, -1) @ (x @ value)).flatten(1)


def _by_torch(x: Any) -> Any:
    query, key, value = _mixed(6, 6, 6, 6, seed=4)
    x = x.unflatten(-1, (3, 2)) @ _mixed(2, 6, seed=5)[0]
    q, k, v = (each.unsqueeze(1) for each in (x @ query, x @ key, x @ value))
    return F.scaled_dot_product_attention(q, k, v).flatten(1)


def _normalized(x: Any) -> Any:
    first, second = _mixed(6, 16, 4)
    return F.layer_norm(torch.relu(x @ first), (16,)) @ second


def _maxima(x: Any) -> Any:
    wide = (x @ _mixed(6, 16)[0]).unflatten(-1, (1, 4, 4))
    return F.max_pool2d(F.max_pool2d(wide, 2, 1), 2, 1).flatten(1)


def _recurrent() -> Model:
    torch.manual_seed(0)
    network = nn.LSTM(2, 4, batch_first=True).double().eval().requires_grad_(False)
    return lambda x: network(x.unflatten(-1, (3, 2)))[0].flatten(1)


MODELS: dict[str, Model] = {
    "in place": _in_place,
    "residual": _residual,
    "attention by hand": _by_hand,
    "attention by torch": _by_torch,
    "layer norm": _normalized,
    "maxima": _maxima,
    "LSTM": _recurrent(),
}


@pytest.mark.parametrize("name", MODELS)
def test_probes_follow_the_dependence_of_units(name: str) -> None:
    model, x = MODELS[name], _inputs(6, 6)
    draws = _draws(model, x, 0.1)
    with torch.no_grad():
        ap2 = momentprop.propagate(model, x, input_variance=0.1, covariance=False)
        probed = momentprop.propagate(model, x, input_variance=0.1, covariance=False, probes=64)
        joint = momentprop.propagate(model, x, input_variance=0.1, probes=64)
        followed = float(_log_ratio(momentprop.propagate(model, x, input_variance=0.1), draws).square().mean().sqrt())
    floor = 0.8 / math.sqrt(len(draws))
    assert _error_of_mean(probed, draws) <= max(_error_of_mean(ap2, draws), 2 * floor)
    assert abs(float(_log_ratio(probed, draws).mean())) < 0.06  # of the deviation; units of an item err together
    assert float(_log_ratio(probed, draws).square().mean().sqrt()) < 0.16  # sqrt(2 / 64) / 2 = 0.09, and the tails
    # rests of 64 probes have long tails
    assert float(_log_ratio(joint, draws).square().mean().sqrt()) < max(0.04, 1.6 * followed)
    assert torch.equal(joint.loc, probed.loc)


def test_overlapping_maxima_have_the_right_mean() -> None:
    x = _inputs(6, 6)
    draws = _draws(_maxima, x, 0.5)
    ap2 = momentprop.propagate(_maxima, x, input_variance=0.5, covariance=False)
    probed = momentprop.propagate(_maxima, x, input_variance=0.5, covariance=False, probes=64)
    assert _error_of_mean(ap2, draws) > 0.5
    assert _error_of_mean(probed, draws) < 0.15


def test_bent_births_make_large_noise_right() -> None:
    first, second = _mixed(2, 24, 2)
    x = _inputs(8, 2)
    model = lambda x: (x @ first).square() @ second  # noqa: E731
    draws = _draws(model, x, 0.5, 8000)
    with torch.no_grad():
        without = momentprop.propagate(model, x, input_variance=0.5)
        bent = momentprop.propagate(model, x, input_variance=0.5, probes=4096)
    assert float(_log_ratio(without, draws).abs().mean()) > 3 * float(_log_ratio(bent, draws).abs().mean())


@pytest.mark.parametrize("layer", [nn.Dropout(0.3), nn.Dropout2d(0.3)], ids=["own masks", "shared masks"])
def test_masks_are_drawn_for_probes(layer: nn.Module) -> None:
    x = _inputs(4, 3, 6, 1)
    model = lambda x: layer(x.relu()).sum((1, 2, 3))  # noqa: E731
    layer.train()
    torch.manual_seed(0)
    draws = _draws(model, x, 0.1)
    with torch.no_grad():
        probed = momentprop.propagate(model, x, input_variance=0.1, covariance=False, probes=512)
    assert float(_log_ratio(probed, draws).abs().max()) < 0.12  # 4 errors of a deviation from 512 draws


def test_certain_inputs_stay_certain() -> None:
    x = _inputs(3, 6)
    for model in MODELS.values():
        for covariance in (False, True):
            with torch.no_grad():
                y = momentprop.propagate(model, x, input_variance=0.0, covariance=covariance, probes=4)
            torch.testing.assert_close(y.loc, model(x))
            assert float(y.variance.abs().max()) == 0


def test_some_certain_units_give_no_nan() -> None:
    x = _inputs(3, 6)
    variance = torch.zeros_like(x)
    variance[0, 0] = 0.3
    for model in MODELS.values():
        with torch.no_grad():
            y = momentprop.propagate(model, x, input_variance=variance, probes=4)
        assert bool(y.loc.isfinite().all() and y.variance.isfinite().all() and (y.variance >= 0).all())


def test_records_are_corrected() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).double().requires_grad_(False)
    x = _inputs(2, 6)
    y, inside = momentprop.propagate(model, x, input_variance=0.3, covariance=False, probes=8, record=True)
    assert [type(value) for value in (y, *inside.values())] == [Normal] * 4
    assert torch.equal(inside["2"].variance, y.variance)
    _, followed = momentprop.propagate(model, x, input_variance=0.3, probes=8, record=True)
    torch.testing.assert_close(followed["1"].variance, inside["1"].variance)


def test_the_covariance_of_an_input_reaches_the_probes() -> None:
    (root,) = _mixed(6, 6)
    x = _inputs(2, 6)
    given = root @ root.T
    model = lambda x: x.sum(-1, keepdim=True)  # noqa: E731
    y = momentprop.propagate(model, x, input_covariance=given, covariance=False, probes=512)
    torch.testing.assert_close(y.variance, given.sum().expand(2, 1), rtol=4 * math.sqrt(2 / 512), atol=0.0)
    assert isinstance(momentprop.propagate(model, x, input_covariance=given, probes=8), Joint)


def test_a_random_weight_is_one_value_wherever_it_is_used() -> None:
    weight = Normal(torch.ones(1, 3, dtype=torch.float64), 0.2)
    model = lambda x: (x * weight - x * weight * 1.0).sum(-1, keepdim=True) + x[:, :1]  # noqa: E731
    x = torch.ones(2, 3, dtype=torch.float64)
    y = momentprop.propagate(model, x, input_variance=0.1, covariance=False, probes=64)
    torch.testing.assert_close(y.variance, torch.full((2, 1), 0.1, dtype=torch.float64), rtol=0.6, atol=0.0)


def test_gradients_take_the_corrections_as_constants() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = _inputs(2, 6)
    y = momentprop.propagate(model, x, input_variance=0.3, probes=8)
    (y.loc.sum() + y.covariance.sum()).backward()
    grads = [model[layer].weight.grad for layer in (0, 2)]
    assert all(bool(grad.isfinite().all()) and bool((grad != 0).any()) for grad in grads)


def test_probes_that_cannot_travel_are_refused() -> None:
    x = _inputs(2, 3)
    with pytest.raises(ValueError, match="from 2 on"):
        momentprop.propagate(torch.relu, x, input_variance=0.1, probes=1)
    with pytest.raises(ValueError, match="not with Logistic values"):
        momentprop.propagate(torch.relu, x, input_variance=0.1, family="logistic", probes=8)
    with pytest.raises(ValueError, match="method='linear'"):
        momentprop.propagate(torch.relu, x, input_variance=0.1, method="linear", probes=8)
