"""Normalization by the statistics of a data set: what it does to models."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import momentprop
from momentprop import Mean, Normal, Statistics, dataset_statistics, fold, input_statistics, propagate
from momentprop.errors import UserError
from momentprop.nn import AnalyticNorm
from momentprop_experiments.networks import lenet
from tests.normalization.models import images_of, make_normalized


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["residual", "VGG", "LeNet"])
def test_all_layers_are_normalized_and_have_no_bias(name: str) -> None:
    model, x = make_normalized(name)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert all(layer.bias is None for layer in layers)
    assert sum(isinstance(m, AnalyticNorm) for m in model.modules()) == len(layers)
    inside = dataset_statistics(model.eval(), input_statistics(x))
    for path, module in model.named_modules():
        if isinstance(module, AnalyticNorm):
            torch.testing.assert_close(inside[path].loc, torch.zeros(module.channels), rtol=0, atol=1e-3)


def test_batch_norm_is_replaced_and_keeps_its_scale_and_shift() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, eps=1e-3))
    for norm in (model[0], model[3]):
        nn.init.uniform_(norm.weight)
        nn.init.uniform_(norm.bias)
    x = images_of()
    made = momentprop.normalize(model, input_statistics(x))
    assert isinstance(model[0], nn.BatchNorm2d), "the model itself is left as it was"
    assert isinstance(made[0], AnalyticNorm)
    assert isinstance(made[3], AnalyticNorm)
    assert made[3].eps == 1e-3
    assert torch.equal(made[3].weight, model[3].weight)
    # by the statistics of all data the first normalization does what batch normalization does with all data
    made(x)
    torch.testing.assert_close(made[0](x), model[0](x), rtol=1e-4, atol=1e-4)
    folded = fold(made)  # there is no layer before the first one
    assert isinstance(folded[0], nn.BatchNorm2d)
    assert isinstance(folded[3], nn.Identity)
    torch.testing.assert_close(folded(x), made(x), rtol=1e-5, atol=1e-5)


def _step(model: nn.Module, run: Callable[[Any], Any]) -> dict[str, Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    y = run(model)
    loss = y.square().mean() if isinstance(y, Tensor) else y.loc.square().mean()
    (loss if not hasattr(y, "variance") else loss + y.variance.mean()).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def _small() -> Any:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Dropout(0.2)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 2))
    return momentprop.normalize(model.double(), input_statistics(_small_images()))


def _small_images() -> Tensor:
    return images_of(2, 8, 4)[:, :, :6, :6].double()


METHODS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda model: model(_small_images()),
    "AP1": lambda model: model(Mean(_small_images())),
    "AP2": lambda model: model(Normal(_small_images(), 0.1)),
    "propagate": lambda model: propagate(model, _small_images(), input_variance=0.1, covariance=False),
}


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_statistics_computed_by_hand(method: str) -> None:
    model = _small()
    found = _step(model, METHODS[method])

    def by_hand(given: Any) -> Any:
        plain = copy.deepcopy(model)
        parameters: Any = dict(model.named_parameters())
        c, n, w, m = (parameters[k] for k in ("0.weight", "1.weight", "6.layer.weight", "6.norm.weight"))
        s = input_statistics(_small_images())
        variance = c.square().sum((2, 3)) @ s.variance
        mean = c.sum((2, 3)) @ s.loc
        scale = n * torch.rsqrt(variance + 1e-5)
        filters, shift = c * scale.reshape(-1, 1, 1, 1), parameters["1.bias"] - mean * scale
        pixel = Statistics.of(
            parameters["1.bias"].reshape(1, -1, 1, 1), (variance * scale.square()).reshape(1, -1, 1, 1)
        )
        rest = nn.Sequential(plain[2], plain[3], nn.Dropout(0.2), nn.Flatten())
        pixel = rest(pixel)
        wide = [part.repeat_interleave(4, 1) for part in (pixel.loc, pixel.variance)]
        last = m * torch.rsqrt(F.linear(wide[1], w.square()) + 1e-5)[0]
        last_mean = F.linear(wide[0], w)[0]
        hidden = rest(F.conv2d(given, filters, shift))
        return F.linear(hidden, w * last[:, None], parameters["6.norm.bias"] - last_mean * last)

    runs = {
        "plain": lambda: by_hand(_small_images()),
        "AP1": lambda: by_hand(Mean(_small_images())),
        "AP2": lambda: by_hand(Normal(_small_images(), 0.1)),
        "propagate": lambda: by_hand(Normal(_small_images(), 0.1)),
    }
    wanted = _step(model, lambda _: runs[method]())
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_derivatives_through_the_statistics_are_right() -> None:
    model = _small().eval()
    names = [name for name, _ in model.named_parameters()]

    def run(*parameters: Tensor) -> Any:
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (_small_images(),))

    assert torch.autograd.gradcheck(
        run, [p.detach().clone().requires_grad_() for p in model.parameters()], fast_mode=True
    )


@pytest.mark.parametrize("method", ["plain", pytest.param("propagate", marks=pytest.mark.full)])
def test_a_compiled_model_gives_the_same_gradients_and_outputs(method: str) -> None:
    torch.compiler.reset()
    model = _small()
    model[4].p = 0.0  # compiled and eager draw other noise
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    wanted = _step(model, METHODS[method])
    found = _step(model, lambda _: METHODS[method](compiled))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert all(module.normalizer is None for module in model.modules() if isinstance(module, AnalyticNorm))


def test_checkpointing_gives_the_same_gradients() -> None:
    class Blocks(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.first, self.last = nn.Sequential(*model[:5]), nn.Sequential(*model[5:])
            self.saving = False

        def forward(self, x: Any) -> Any:
            return self.last(checkpoint(self.first, x, use_reentrant=False) if self.saving else self.first(x))

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten())
    model = momentprop.normalize(
        Blocks(nn.Sequential(*plain, nn.Linear(12, 2))).double(), input_statistics(_small_images())
    )
    wanted = _step(model, METHODS["AP2"])
    model.saving = True
    torch.testing.assert_close(_step(model, METHODS["AP2"]), wanted, rtol=1e-12, atol=1e-14)


def test_copies_pickles_and_states_are_the_same_model() -> None:
    model = _small()
    model(_small_images())  # now the layers hold statistics with a history
    wanted = model.eval()(_small_images())
    loaded = _small()
    with torch.no_grad():
        for tensor in loaded.state_dict().values():
            tensor.fill_(0.5)
    loaded.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded.eval()):
        torch.testing.assert_close(twin(_small_images()), wanted, rtol=0, atol=0)
        assert twin[1].normalizer is not model[1].normalizer


def test_training_and_evaluation_normalize_alike_and_draws_too() -> None:
    model = _small()
    x = _small_images()
    model(x)
    in_training = model[1].normalizer, model[6].norm.normalizer
    model.eval()
    with torch.no_grad():
        model(x)
    torch.testing.assert_close((model[1].normalizer, model[6].norm.normalizer), in_training)
    many = propagate(model, x, method="sample", input_variance=0.1, dropout=True, samples=500, seed=0)
    torch.testing.assert_close(model[1].normalizer, in_training[0])
    _, inside = propagate(model, x, input_variance=0.1, dropout=True, record=True, covariance=False)
    assert [type(value) for value in inside.values()] == [Normal] * len(inside)
    assert ((many.loc - inside["6"].loc).abs() < 0.5 * inside["6"].variance.sqrt()).all()


def test_half_precision_and_autocast_normalize_by_statistics_in_float() -> None:
    model, x = make_normalized("two kinds of pooling")
    with torch.no_grad():
        wanted = model.eval()(x)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(x)
        assert model.stem[1].normalizer.scale.dtype == torch.float32
        torch.testing.assert_close(found.float(), wanted, rtol=0, atol=0.05 * float(wanted.abs().max()))
        half = model.bfloat16()
        torch.testing.assert_close(half(x.bfloat16()).float(), wanted, rtol=0, atol=0.1 * float(wanted.abs().max()))


class _InPlace(nn.Module):
    """Writes into views of its input and of what its layers return, as preprocessing and activations do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 3, 1)

    def forward(self, x: Any) -> Any:
        x = x.clone()
        x.view(x.shape).mul_(2.0)
        y = F.interpolate(F.pad(self.layer(x), (1, 1)), scale_factor=2)
        F.adaptive_avg_pool2d(y, 1).flatten(1).add_(100.0)
        return y.view(y.shape).sub_(7.0)


def test_operations_in_place_change_neither_parameters_nor_statistics() -> None:
    x = images_of(2, 8)
    statistics = input_statistics(x)
    model = momentprop.normalize(_InPlace(), statistics)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        assert dataset_statistics(model.eval(), statistics)[""].loc.tolist() == [-7.0] * 3
        model(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_normalized_model_gets_other_statistics() -> None:
    model = _small()
    again = momentprop.normalize(model, Statistics(torch.ones(2), torch.full((2,), 4.0)))
    assert [type(m) for m in again.modules()] == [type(m) for m in model.modules()]
    assert again.statistics_variance.tolist() == [4.0, 4.0]
    assert len(again._forward_pre_hooks) == 1


class _Twice(nn.Module):
    """Uses the output of a layer before and after it is normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return self.norm(y) + 3 * y


def test_what_cannot_be_normalized_or_folded_says_so() -> None:
    statistics = Statistics(torch.zeros(2), torch.ones(2))
    with pytest.raises(RuntimeError, match=r"AnalyticNorm at module 'norm1' .* has no statistics.*normalize"):
        lenet(norm="analytic")(torch.zeros(1, 1, 28, 28))
    inner = momentprop.normalize(nn.Sequential(nn.Linear(2, 2)), statistics)
    with pytest.raises(UserError, match="module '0' is already normalized"):
        momentprop.normalize(nn.Sequential(inner, nn.Linear(2, 2)), statistics)
    with pytest.raises(UserError, match="nothing to fold"):
        fold(nn.Linear(2, 2))
    with pytest.raises(UserError, match="also uses the outputs of a layer before they are normalized"):
        fold(momentprop.normalize(_Twice(), statistics))
    constant = nn.Sequential(nn.Linear(2, 3))
    nn.init.zeros_(constant[0].weight)
    with pytest.raises(UserError, match=r"the inputs of '0.norm' cannot be normalized: channels 0, 1, 2 are constant"):
        momentprop.normalize(constant, statistics)
