r"""The elementwise operations, one line each; every line inherits all the tests of `tests/rules/elementwise/`.

A line names the operation as torch spells it, gives the function as `f(x, fn)` for numpy and mpmath (see
`tests.oracle`), torch's further arguments, the kinks (points where $f$ is not smooth), the Lipschitz constant and the
bounds of the result where they exist. Tolerances are not here: a rule's docstring states its error, and that is tested.
After adding a line run `python -m tests.oracle`, which freezes its golden cells.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Normal, dispatch
from tests import oracle


@dataclasses.dataclass(frozen=True)
class Case:
    op: str
    f: oracle.Function
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    kinks: tuple[float, ...] = ()
    lipschitz: float | None = None
    bounds: tuple[float, float] | None = None
    # The moments in closed form (numpy, of mean and variance), where quadrature cannot follow (sin, exp).
    closed: Callable[[Any, Any], tuple[Any, Any]] | None = None
    # The largest standard deviation of a golden cell.
    golden_reach: float = math.inf

    def __call__(self, x: Any, function: Callable[..., Any] | None = None) -> Any:
        """The operation on a tensor or a value, by any of its spellings."""
        args = [arg.to(x.dtype) if isinstance(arg, Tensor) else arg for arg in self.args]
        return (function or next(self.spellings()))(x, *args, **self.kwargs)

    def spellings(self, suffix: str = "") -> Iterator[Callable[..., Any]]:
        """The public functions and the method of this name (in-place: with the suffix `_`)."""
        for room in (torch, F, torch.special, Normal):
            if hasattr(room, self.op + suffix):
                yield getattr(room, self.op + suffix)

    @property
    def name(self) -> str:
        given = [*self.args, *(f"{name}={value}" for name, value in self.kwargs.items())]
        shown = (str(value.tolist()) if isinstance(value, Tensor) else str(value) for value in given)
        return f"{self.op}({', '.join(shown)})" if given else self.op

    @property
    def rule(self) -> dispatch.Rule:
        found = [row for row in dispatch.table() if (row.op, row.on) == (self.op, Normal)]
        assert found, f"{self.name} has a test case but no rule"
        return found[0]

    @property
    def exact(self) -> bool:
        return "exact" in self.rule.error

    def tolerance(self, dtype: torch.dtype) -> float:
        """The error that the rule's docstring states for this dtype."""
        number = r"(\d[\d.]*e-\d+)"
        in_double = re.search(number + r" in float64", self.rule.error)
        stated = in_double if in_double and dtype == torch.float64 else re.search(number, self.rule.error)
        assert stated, f"the docstring of the rule for {self.op!r} must state its error, but has {self.rule.error!r}"
        return float(stated[1])

    def slack_at_minima(self, dtype: torch.dtype) -> float:
        """What the docstring adds in float32 near a minimum, times the deviation of the input."""
        stated = re.search(r"plus (\d[\d.]*e-\d+)/\$.sigma\$", self.rule.error)
        return float(stated[1]) if stated and dtype == torch.float32 else 0.0

    @property
    def turns(self) -> list[float]:
        """The kinks, and the points where a smooth function turns."""
        x = np.linspace(-12, 12, 240_001)
        rise = np.diff(self.f(x, oracle.FLOAT))
        bend = np.abs(np.diff(rise)) / (x[1] - x[0]) ** 2
        minima = x[1:-1][(rise[:-1] * rise[1:] < 0) & (bend > 1e-3)]
        return sorted({*self.kinks, *np.round(minima, 4).tolist()})

    def truth(self, mean: Any, variance: Any) -> tuple[np.ndarray, np.ndarray]:
        """The true moments by the oracle."""
        if self.closed is not None:
            with np.errstate(all="ignore"):
                return self.closed(mean, variance)
        return oracle.moments(self.f, mean, variance, self.kinks)

    def slopes(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The true $E f'(X)$ and $E f''(X)$: the derivative of the mean by the mean, and twice that by the variance."""
        if self.closed is None:
            return oracle.slopes(self.f, mean, variance, self.kinks)

        def difference(by_mean: bool) -> np.ndarray:
            step = 1e-3 * (np.minimum(np.sqrt(variance), 1.0) if by_mean else np.minimum(variance, 1.0))

            def at(k: int) -> np.ndarray:
                return self.truth(mean + k * step * by_mean, variance + k * step * (not by_mean))[0]

            return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)

        return difference(by_mean=True), 2 * difference(by_mean=False)

    def has(self, symmetry: Callable[[oracle.Function, np.ndarray], Any]) -> bool:
        """Whether the function has a symmetry, given as an expression that vanishes if it does."""
        x = np.array([0.03, 0.4, 0.9, 1.7, 2.6, 3.5, 5.8, 7.1])
        return bool(np.all(np.abs(symmetry(lambda x: self.f(x, oracle.FLOAT), x)) < 1e-12))


def leaky(slope: float) -> oracle.Function:
    return lambda x, fn: fn.where(x > 0, x, slope * x)


def elu(alpha: float = 1.0, scale: float = 1.0, stretch: float = 1.0) -> oracle.Function:
    return lambda x, fn: scale * fn.where(x > 0, x, alpha * fn.expm1(fn.minimum(x, 0) / stretch))


def clip(low: float, high: float) -> oracle.Function:
    return lambda x, fn: fn.clip(x, low, high)


_TANH_GELU = math.sqrt(2 / math.pi)
_SELU = {"alpha": 1.6732632423543772848170429916717, "scale": 1.0507009873554804934193349852946}


def exponential(rate: float = 1.0, power: Any = np.exp) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Moments of exp(rate X), or of its `power` less one."""
    return lambda m, v: (
        power(rate * m + rate**2 * v / 2),
        np.exp(2 * rate * m + rate**2 * v) * np.expm1(rate**2 * v),
    )


def sinusoid(wave: Any, quarter: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Moments of the sine (with the cosine as its `quarter`) or of the cosine (with the sine)."""
    return lambda m, v: (
        np.exp(-v / 2) * wave(m),
        -np.expm1(-v) * (-np.expm1(-v) / 2 + np.exp(-v) * quarter(m) ** 2),
    )


CASES = [
    # rectifiers
    Case("relu", leaky(0), kinks=(0,), lipschitz=1),
    Case("leaky_relu", leaky(0.01), kinks=(0,), lipschitz=1),
    Case("leaky_relu", leaky(0.1), (0.1,), kinks=(0,), lipschitz=1),
    Case("leaky_relu", leaky(-0.5), (-0.5,), kinks=(0,), lipschitz=1),
    Case("leaky_relu", leaky(1.5), kwargs={"negative_slope": 1.5}, kinks=(0,), lipschitz=1.5),
    Case("prelu", leaky(0.25), (torch.tensor([0.25]),), kinks=(0,), lipschitz=1),
    Case("rrelu", leaky((1 / 8 + 1 / 3) / 2), kinks=(0,), lipschitz=1),
    Case("abs", lambda x, fn: fn.abs(x), kinks=(0,), lipschitz=1),
    # thresholds
    Case("heaviside", lambda x, fn: fn.where(x >= 0, 1.0, 0.0), (torch.tensor(0.5),), kinks=(0,), bounds=(0, 1)),
    Case("sign", lambda x, fn: fn.where(x >= 0, 1.0, -1.0), kinks=(0,), bounds=(-1, 1)),
    Case("threshold", lambda x, fn: fn.where(x > 0.5, x, -1.0), (0.5, -1.0), kinks=(0.5,)),
    # saturating units
    Case("sigmoid", lambda x, fn: fn.expit(x), lipschitz=0.25, bounds=(0, 1)),
    Case("tanh", lambda x, fn: fn.tanh(x), lipschitz=1, bounds=(-1, 1)),
    Case("ndtr", lambda x, fn: fn.ndtr(x), lipschitz=1 / math.sqrt(2 * math.pi), bounds=(0, 1)),
    Case("erf", lambda x, fn: fn.erf(x), lipschitz=2 / math.sqrt(math.pi), bounds=(-1, 1)),
    Case("softsign", lambda x, fn: x / (1 + fn.abs(x)), kinks=(0,), lipschitz=1, bounds=(-1, 1)),
    Case("clamp", clip(-1, 2), (-1.0, 2.0), kinks=(-1, 2), lipschitz=1, bounds=(-1, 2)),
    Case("clamp", clip(0.5, math.inf), kwargs={"min": 0.5}, kinks=(0.5,), lipschitz=1),
    Case("clamp_min", clip(0.5, math.inf), (0.5,), kinks=(0.5,), lipschitz=1),
    Case("clamp", clip(-math.inf, 0.5), kwargs={"max": 0.5}, kinks=(0.5,), lipschitz=1),
    Case("clamp_max", clip(-math.inf, 0.5), (0.5,), kinks=(0.5,), lipschitz=1),
    Case("hardtanh", clip(-1, 1), kinks=(-1, 1), lipschitz=1, bounds=(-1, 1)),
    Case("relu6", clip(0, 6), kinks=(0, 6), lipschitz=1, bounds=(0, 6)),
    Case("hardsigmoid", lambda x, fn: fn.clip(x / 6 + 0.5, 0, 1), kinks=(-3, 3), lipschitz=1 / 6, bounds=(0, 1)),
    # smooth and exponential rectifiers
    Case("softplus", lambda x, fn: fn.softplus(x), lipschitz=1),
    Case("softplus", lambda x, fn: fn.softplus(2 * x) / 2, (2.0,), lipschitz=1),
    Case("logsigmoid", lambda x, fn: -fn.softplus(-x), lipschitz=1),
    Case("silu", lambda x, fn: x * fn.expit(x), lipschitz=1.0999),
    Case("mish", lambda x, fn: x * fn.tanh(fn.softplus(x)), lipschitz=1.0885),
    Case("gelu", lambda x, fn: x * fn.ndtr(x), lipschitz=1.129),
    Case(
        "gelu",
        lambda x, fn: x * (1 + fn.tanh(_TANH_GELU * (x + 0.044715 * x**3))) / 2,
        kwargs={"approximate": "tanh"},
        lipschitz=1.13,
    ),
    Case("elu", elu(), kinks=(0,), lipschitz=1),
    Case("elu", elu(0.5), (0.5,), kinks=(0,), lipschitz=1),
    Case("selu", elu(**_SELU), kinks=(0,), lipschitz=_SELU["alpha"] * _SELU["scale"]),
    Case("celu", elu(2, stretch=2), (2.0,), kinks=(0,), lipschitz=1),
    Case("hardswish", lambda x, fn: x * fn.clip(x + 3, 0, 6) / 6, kinks=(-3, 3), lipschitz=1.5),
    # shrinkage
    Case("softshrink", lambda x, fn: x - fn.clip(x, -0.5, 0.5), kinks=(-0.5, 0.5), lipschitz=1),
    Case("hardshrink", lambda x, fn: fn.where(fn.abs(x) > 0.5, x, 0.0), kinks=(-0.5, 0.5)),
    Case("tanhshrink", lambda x, fn: x - fn.tanh(x), lipschitz=1),
    # elementary functions
    Case("exp", lambda x, fn: fn.exp(x), closed=exponential(), golden_reach=2),
    Case("exp2", lambda x, fn: 2**x, closed=exponential(math.log(2)), golden_reach=2),
    Case("expm1", lambda x, fn: fn.expm1(x), closed=exponential(power=np.expm1), golden_reach=2),
    Case("square", lambda x, fn: x * x),
    Case("pow", lambda x, fn: x * x, (2,)),
    Case("pow", lambda x, fn: x * x * x, (3,)),
    Case("sin", lambda x, fn: fn.sin(x), lipschitz=1, bounds=(-1, 1), closed=sinusoid(np.sin, np.cos), golden_reach=6),
    Case("cos", lambda x, fn: fn.cos(x), lipschitz=1, bounds=(-1, 1), closed=sinusoid(np.cos, np.sin), golden_reach=6),
]
