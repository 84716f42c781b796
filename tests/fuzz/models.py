"""Random small models: sane results of every method, and the right moments where AP2 is exact.

AP2 takes the inputs of every operation as independent, so only some models have exact moments: one linear layer on
independent inputs, then elementwise functions. These are compared with draws. Of all models it is asked that no result
is NaN, infinite or negative, that no variance gives the plain network, and that draws are those of the network.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop import Estimate, Normal
from tests.fuzz import results

SAMPLES = 4000
"""The draws that exact models are compared with."""
_SIGMAS = 6.5  # a deviation from the truth that chance reaches once in ten billion comparisons
_RARE = 0.1  # units whose deviation is below this part of what enters them may owe it to events that draws miss

WIDTH = 6
ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Hardtanh,
    nn.Hardswish, nn.Hardsigmoid, nn.Softsign, nn.Tanhshrink, nn.LogSigmoid, nn.ReLU6, nn.PReLU, nn.CELU, nn.Softshrink,
]  # fmt: skip


class Residual(nn.Module):
    """Adds an elementwise function, or a branch, to its input."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Any) -> Any:
        return x + self.branch(x)


class Recurrent(nn.Module):
    """A recurrent layer, whose states are not returned."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


class Attention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


class Convolution(nn.Module):
    """A convolution along the sequence."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, size, padding=size // 2)

    def forward(self, x: Any) -> Any:
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)


def _layers(random: Random) -> list[Callable[[], nn.Module]]:
    """Layers that keep the shape (batch, length, WIDTH)."""
    activation = random.choice(ACTIVATIONS)
    return [
        lambda: nn.Linear(WIDTH, WIDTH),
        activation,
        lambda: nn.LayerNorm(WIDTH),
        lambda: nn.RMSNorm(WIDTH),
        lambda: nn.Dropout(random.uniform(0.0, 0.9)),
        lambda: Residual(activation()),
        lambda: Residual(nn.Sequential(nn.Linear(WIDTH, WIDTH), activation())),
        lambda: Convolution(random.choice((1, 3))),
        Attention,
        lambda: Recurrent(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
        lambda: Recurrent(nn.GRU(WIDTH, WIDTH, batch_first=True)),
        lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.1, batch_first=True),
        lambda: nn.Softmax(-1),
    ]


def any_model(random: Random) -> nn.Module:
    """A chain of up to six layers."""
    layers = [random.choice(_layers(random))() for _ in range(random.randint(1, 6))]
    return nn.Sequential(*layers).eval()


def exact_model(random: Random) -> nn.Module:
    """A linear layer, an elementwise one, perhaps beside its input, and perhaps dropout: AP2 is exact."""
    activation = random.choice(ACTIVATIONS)()
    layers = [nn.Linear(WIDTH, WIDTH), Residual(activation) if random.random() < 0.4 else activation]
    if random.random() < 0.3:
        layers.append(nn.Dropout(random.uniform(0.1, 0.7)))
    return nn.Sequential(*layers).eval()


def trial(random: Random, device: str = "cpu") -> Counter[str]:
    """Make one model, and run it."""
    exact = random.random() < 0.4
    model = (exact_model if exact else any_model)(random).to(device)
    _scale(model, 10 ** random.uniform(-1.0, 1.0))
    mean = 10 ** random.uniform(-2, 1) * torch.randn(2, 3, WIDTH)
    variance = 10 ** random.uniform(-6, 3) * torch.rand(2, 3, WIDTH)
    dtype = random.choice((torch.float32, torch.float64))
    model, mean, variance = model.to(dtype), mean.to(device, dtype), variance.to(device, dtype)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        check_sanity(model, mean, variance)
        if exact:
            check_draws(model, mean, variance, random.getrandbits(31))
    return Counter({"models": 1, "layers": len(list(model.modules())), "exact models": int(exact)})


def _scale(model: nn.Module, factor: float) -> None:
    for parameter in model.parameters():
        parameter.detach().mul_(factor)


def check_sanity(model: nn.Module, mean: Tensor, variance: Tensor) -> None:
    """Check the results of AP1 and AP2, and that certain inputs give the plain network."""
    plain = model(mean)
    given = f"means to {float(mean.abs().max()):.3g}, variances to {float(variance.max()):.3g}, {_described(model)}"
    for dropout in (False, True):
        y = momentprop.propagate(model, mean, input_variance=variance, dropout=dropout, covariance=False)
        results.check(f"AP2 in {str(mean.dtype)[6:]}", y, plain, None, given)
    certain = momentprop.propagate(model, mean, input_variance=0.0, covariance=False)
    assert not bool((certain.variance != 0).any()), f"without variance there is a variance; {given}"
    close = 2e-3 if mean.dtype == torch.float32 else 1e-8  # of the largest output: norms amplify rounding
    scale = plain.abs().amax().clamp(min=1.0)
    for name, y in (("without variance", certain), ("AP1", momentprop.propagate(model, mean, method="ap1"))):
        off = float(((y.loc - plain).abs() / scale).max())
        assert off <= close, f"{name}, the mean is off by {off:.3g} of the plain network's; {given}"


def _described(model: nn.Module) -> str:
    return " ".join(str(model).split())


def check_draws(model: nn.Module, mean: Tensor, variance: Tensor, seed: int) -> None:
    """Compare AP2, which is exact here, with draws by `propagate` and with draws that are made here."""
    noisy = any(isinstance(module, nn.Dropout) for module in model.modules())
    y = momentprop.propagate(model, mean, input_variance=variance, dropout=noisy, covariance=False)
    given = {"input_variance": variance, "dropout": noisy}
    ours = momentprop.propagate(model, mean, method="sample", samples=SAMPLES, seed=seed, **given)
    torch.manual_seed(seed)
    drawn = mean + variance.sqrt() * torch.randn(SAMPLES, *mean.shape, dtype=mean.dtype, device=mean.device)
    theirs = _moments(model.train(noisy)(drawn))
    model.eval()
    units = momentprop.propagate(model[0], mean, input_variance=variance, covariance=False).stddev
    common = y.stddev > _RARE * units.clamp(max=1.0)
    for name, found in (("propagate's draws", ours), ("draws by hand", theirs)):
        _agree(f"AP2 and {name}", y, found, common, _described(model))


def _moments(draws: Tensor) -> Estimate:
    draws = draws.double()
    count = draws.shape[0]
    centred = draws - draws.mean(0)
    square = centred.square()
    variance = square.sum(0) / (count - 1)
    of_variance = ((centred**4).mean(0) - square.mean(0) ** 2).clamp(min=0.0) / count
    return Estimate.of(draws.mean(0), variance, (variance / count).sqrt(), of_variance.sqrt())


def _agree(title: str, y: Normal, draws: Estimate, common: Tensor, given: str) -> None:
    """Compare moments with estimates of units that are not the result of rare events."""
    std, rounding = y.stddev.double(), 1e-5 * y.loc.double().abs() + 1e-7
    mean_error = torch.maximum(draws.loc_error.double(), std / math.sqrt(SAMPLES))
    off = (y.loc.double() - draws.loc.double()).abs() - rounding
    _below(f"{title} differ in the mean", off, mean_error, common, given)
    variance_error = torch.maximum(draws.variance_error.double(), 3 * y.variance.double() / math.sqrt(SAMPLES))
    off = (y.variance.double() - draws.variance.double()).abs() - 1e-4 * y.variance - rounding**2
    _below(f"{title} differ in the variance", off, variance_error, common, given)


def _below(title: str, off: Tensor, error: Tensor, common: Tensor, given: str) -> None:
    z = float(torch.where(common, off / error, 0.0).max())
    assert z < _SIGMAS, f"{title} by {z:.1f} standard errors; {given}"
