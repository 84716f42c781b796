"""The elementwise functions with random parameters, and what mathematics knows of each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cases import CASES


@dataclass(frozen=True)
class Exponential:
    """The growth of exp(rate X)."""

    rate: float

    def exponent(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithm of the mean of the result, and the variance of that of the result."""
        spread = self.rate**2 * variance
        return self.rate * mean + spread / 2, spread

    def log_size(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the logarithm of the larger one of both moments, for a mean and a variance in float64."""
        first, spread = self.exponent(mean, variance)
        return torch.maximum(first, 2 * first + torch.where(spread > 30, spread, spread.clamp(max=30).expm1().log()))

    def rounding(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return how many times the rounding of an exponent is that of a number near one."""
        first, spread = self.exponent(mean, variance)
        return 2 * (first.abs() + spread)


class Lognormal(Exponential):
    """The growth of a power of a lognormal variable; `rate` is the exponent."""

    def exponent(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithm of the mean of the result, and the variance of that of the result."""
        spread = torch.log1p(variance / mean / mean)
        return self.rate * mean.abs().log() + self.rate * (self.rate - 1) / 2 * spread, self.rate**2 * spread


@dataclass(frozen=True)
class Function:
    """An elementwise function of one value, and its properties where they are known."""

    name: str
    call: Callable[[Any], Any]
    kinks: tuple[float, ...] = ()
    lipschitz: float | None = None
    bounds: tuple[float, float] | None = None
    bend: int = 0  # 1 convex, -1 concave
    positive: bool = False  # takes the value as lognormal
    growth: Exponential | None = None  # where the result of finite inputs may overflow in float64
    error: float = 1e-4  # that its rule states for float32
    cost: int = 1  # how many times fewer inputs a call gets

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Family:
    """An operation whose parameters are drawn."""

    op: str
    draw: Callable[[Random], Function]


_CONVEX = set("relu abs softplus exp exp2 expm1 square".split())
_CONCAVE = {"logsigmoid"}
_SLOW = {"softsign": 16, "tanhshrink": 16, "mish": 4}
_RATES = {"exp": 1.0, "expm1": 1.0, "exp2": math.log(2)}
_WITH_PARAMETERS = set(
    "leaky_relu prelu rrelu threshold clamp clamp_min clamp_max hardtanh softplus elu celu hardshrink softshrink pow "
    "heaviside".split()
)


def _fixed() -> dict[str, Function]:
    """The functions without parameters, from the table of cases."""
    found = {}
    for case in CASES:
        if case.op in _WITH_PARAMETERS or case.args or case.kwargs:
            continue
        found[case.op] = Function(
            case.op, case, case.kinks, case.lipschitz, case.bounds,
            bend=int(case.op in _CONVEX) - int(case.op in _CONCAVE),
            growth=Exponential(_RATES[case.op]) if case.op in _RATES else None,
            error=case.tolerance(torch.float32), cost=_SLOW.get(case.op, 1),
        )  # fmt: skip
    return found


def _positive(op: Callable[[Any], Any], power: float | None, bend: int) -> Function:
    growth = None if power is None else Lognormal(power)
    return Function(op.__name__, op, bend=bend, positive=True, growth=growth, error=5e-6)


def _number(random: Random, low: float = 1e-3, high: float = 1e3) -> float:
    """A random size, uniform in its logarithm, exact in float16 where it can be."""
    drawn = math.exp(random.uniform(math.log(low), math.log(high)))
    return float(torch.tensor(drawn, dtype=torch.bfloat16).double())


def _signed(random: Random, low: float = 1e-3, high: float = 1e3) -> float:
    return random.choice((-1, 0, 1, 1, -1)) * _number(random, low, high)


def _rectified(name: str, call: Callable[[Any], Any], slope: float) -> Function:
    steepest = max(1.0, abs(slope))
    return Function(name, call, (0.0,), steepest, bend=1 if slope <= 1 else -1, error=5e-6)


def _leaky_relu(random: Random) -> Function:
    slope = _signed(random, 1e-3, 4.0)
    return _rectified(f"leaky_relu(negative_slope={slope})", partial(F.leaky_relu, negative_slope=slope), slope)


def _prelu(random: Random) -> Function:
    slope = _signed(random, 1e-3, 4.0)

    def prelu(x: Any) -> Any:
        return F.prelu(x, torch.tensor([slope], dtype=x.dtype, device=x.device))

    return _rectified(f"prelu({slope})", prelu, slope)


def _rrelu(random: Random) -> Function:
    low = _number(random, 1e-3, 1.0)
    high = low + _number(random, 1e-3, 1.0)
    return _rectified(f"rrelu({low}, {high})", partial(F.rrelu, lower=low, upper=high), (low + high) / 2)


def _threshold(random: Random) -> Function:
    at, below = _signed(random), _signed(random)
    return Function(f"threshold({at}, {below})", lambda x: F.threshold(x, at, below), (at,), error=5e-6)


def _heaviside(random: Random) -> Function:
    at_zero = random.choice((0.0, 0.5, 1.0))

    def heaviside(x: Any) -> Any:
        return torch.heaviside(x, torch.tensor(at_zero, dtype=x.dtype, device=x.device))

    return Function(f"heaviside({at_zero})", heaviside, (0.0,), bounds=(0, 1), error=5e-6)


def _clamp(random: Random, op: Callable[..., Any] = torch.clamp) -> Function:
    low = _signed(random)
    high = low + _number(random)
    name = f"{op.__name__}({low}, {high})"
    return Function(name, lambda x: op(x, low, high), (low, high), 1.0, (low, high), error=5e-6)


def _clamp_min(random: Random) -> Function:
    low = _signed(random)
    return Function(f"clamp_min({low})", lambda x: torch.clamp_min(x, low), (low,), 1.0, bend=1, error=5e-6)


def _clamp_max(random: Random) -> Function:
    high = _signed(random)
    return Function(f"clamp_max({high})", lambda x: torch.clamp_max(x, high), (high,), 1.0, bend=-1, error=5e-6)


def _softplus(random: Random) -> Function:
    beta = _number(random, 1e-2, 1e2)
    return Function(f"softplus(beta={beta})", partial(F.softplus, beta=beta), (), 1.0, bend=1, error=2e-5)


def _elu(random: Random) -> Function:
    alpha = _number(random, 1e-2, 4.0)
    bend = 1 if alpha <= 1 else 0
    return Function(f"elu({alpha})", partial(F.elu, alpha=alpha), (0.0,), max(alpha, 1.0), bend=bend, error=1e-5)


def _celu(random: Random) -> Function:
    alpha = _number(random, 1e-2, 4.0)
    return Function(f"celu({alpha})", partial(F.celu, alpha=alpha), (0.0,), 1.0, bend=1, error=1e-5)


def _softshrink(random: Random) -> Function:
    at = random.choice((0.0, _number(random)))
    return Function(f"softshrink({at})", partial(F.softshrink, lambd=at), (-at, at), 1.0, error=5e-6)


def _hardshrink(random: Random) -> Function:
    at = random.choice((0.0, _number(random), -_number(random)))
    return Function(f"hardshrink({at})", partial(F.hardshrink, lambd=at), (-at, at), error=5e-6)


def _power(random: Random) -> Function:
    n = random.randint(0, 5)
    bend = 1 if n in (0, 2, 4) else 0
    return Function(f"pow({n})", partial(torch.pow, exponent=n), bend=bend, error=5e-6)


def _real_power(random: Random) -> Function:
    p = random.choice((-2.0, -1.5, -0.5, 0.5, 1.5, 2.5))
    bend = -1 if 0 < p < 1 else 1
    call = partial(torch.pow, exponent=p)
    return Function(f"pow({p})", call, bend=bend, positive=True, growth=Lognormal(p), error=5e-6)


def _base(random: Random) -> Function:
    base = _number(random, 1e-2, 1e2)
    rate = math.log(base)
    return Function(f"{base} ** x", lambda x: base**x, bend=1, growth=Exponential(rate), error=5e-6)


_OF_POSITIVE = (
    _positive(torch.log, None, -1),
    _positive(torch.log2, None, -1),
    _positive(torch.log10, None, -1),
    _positive(torch.log1p, None, -1),
    _positive(torch.sqrt, 0.5, -1),
    _positive(torch.rsqrt, -0.5, 1),
    _positive(torch.reciprocal, -1.0, 1),
)

FAMILIES = [
    *(Family(op, lambda _, function=function: function) for op, function in _fixed().items()),
    *(Family(function.name, lambda _, function=function: function) for function in _OF_POSITIVE),
    Family("leaky_relu", _leaky_relu),
    Family("prelu", _prelu),
    Family("rrelu", _rrelu),
    Family("threshold", _threshold),
    Family("heaviside", _heaviside),
    Family("clamp", _clamp),
    Family("hardtanh", partial(_clamp, op=F.hardtanh)),
    Family("clamp_min", _clamp_min),
    Family("clamp_max", _clamp_max),
    Family("softplus", _softplus),
    Family("elu", _elu),
    Family("celu", _celu),
    Family("softshrink", _softshrink),
    Family("hardshrink", _hardshrink),
    Family("pow", _power),
    Family("pow", _real_power),
    Family("pow", _base),
]
"""Every elementwise operation of the table; `tests/test_fuzz.py` sees to that."""
