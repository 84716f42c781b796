r"""Binary units $Y = [\![X - Z \ge 0]\!]$ with or without noise $Z$."""

from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution

from momentprop import functional
from momentprop.functional.stochastic_units import Gradient, LogisticMethod, as_gradient, as_method
from momentprop.nn.noise import Noisy
from momentprop.noise.named import standard


def _ends(low: float, high: float) -> tuple[float, float]:
    if not low < high:
        raise ValueError(f"the lower value of a binary unit must be below the upper, but low={low} and high={high}")
    return float(low), float(high)


class StochasticBinary(Noisy):
    r"""A unit that is `high` where $X - Z \ge 0$, that is with probability $F(X)$, and `low` otherwise.

    $F$ is the distribution function of the noise $Z$.

    >>> import torch, momentprop
    >>> unit = momentprop.nn.StochasticBinary("uniform", low=-1.0)
    >>> unit(momentprop.Normal(torch.tensor([0.2]), 0.01))
    Normal(loc=tensor([0.3999]),
           variance=tensor([0.8401]))
    >>> unit(momentprop.Sample(torch.tensor([-0.6, 0.6])))
    Sample(loc=tensor([-1.,  1.]))

    Args:
        noise: a name (see `momentprop.noise.named.noise`) or a `torch.distributions.Distribution` with a `cdf`.
        low: the value of the unit where $X < Z$: 0, or -1.
        high: its value otherwise.
        method: how to compute the expectation of a value with a variance: `"exact"`, or one of the paper's (`"ap2a"`,
            `"ap2b"`, and for logistic noise `"pea"`, `"mackay"`). `None` lets the type of the value choose: `"ap2b"`
            for `Logistic` and `Fitted`.
        gradient: the gradient of draws: `"straight_through"` is the expectation's and is biased; `"score"` uses the
            active `ScoreFunction` and is unbiased.
    """

    def __init__(
        self,
        noise: str | Distribution = "logistic",
        low: float = 0.0,
        high: float = 1.0,
        method: LogisticMethod | None = "exact",
        gradient: Gradient = "straight_through",
    ) -> None:
        super().__init__(noise)
        own = standard(self.noise, torch.zeros(()))
        own.cdf(torch.zeros(self.noise.batch_shape))  # raises an error if the noise has no `cdf`
        if method is not None:
            as_method(method, own.name)
        self.low, self.high = _ends(low, high)
        self.method, self.gradient = method, as_gradient(gradient)

    def forward(self, input: Any) -> Any:
        """Draw the unit, or take its moments."""
        return functional.stochastic_binary(
            input, self.noise, self.low, self.high, self.method, self.gradient, self.training
        )

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        parts = [super().extra_repr(), f"low={self.low}, high={self.high}, method={self.method}"]
        return ", ".join(parts if self.gradient == "straight_through" else [*parts, f"gradient={self.gradient}"])


class LogisticBernoulli(StochasticBinary):
    r"""The unit of sigmoid belief networks: `high` with probability $S(X) = 1/(1 + e^{-X})$.

    >>> import torch, momentprop
    >>> x = momentprop.Normal(torch.tensor([1.0]), 4.0)
    >>> [momentprop.nn.LogisticBernoulli(method)(x).loc.item() for method in ("exact", "ap2b")]
    [0.647..., 0.661...]
    """

    def __init__(
        self,
        method: LogisticMethod | None = "exact",
        low: float = 0.0,
        high: float = 1.0,
        gradient: Gradient = "straight_through",
    ) -> None:
        super().__init__("logistic", low, high, method, gradient)


class Probit(StochasticBinary):
    r"""A unit that is `high` with probability $\Phi(X)$, the normal distribution function."""

    def __init__(self, low: float = 0.0, high: float = 1.0, gradient: Gradient = "straight_through") -> None:
        super().__init__("normal", low, high, "exact", gradient)


class Heaviside(nn.Module):
    r"""A hard threshold: `high` where $X \ge 0$ and `low` otherwise.

    Its gradient is zero for certain inputs. For uncertain ones, the mean $\Phi(\mu/\sigma)$ is smooth.

    >>> import torch, momentprop
    >>> momentprop.nn.Heaviside()(momentprop.Normal(torch.tensor([0.0, 1.0]), 1.0)).loc
    tensor([0.5000, 0.8413])
    """

    def __init__(self, low: float = 0.0, high: float = 1.0) -> None:
        super().__init__()
        self.low, self.high = _ends(low, high)

    def forward(self, input: Any) -> Any:
        """Apply the threshold."""
        return functional.binary_step(input, self.low, self.high)

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        return f"low={self.low}, high={self.high}"


class Sign(Heaviside):
    r"""The sign of the input; unlike `torch.sign`, it is 1 at zero."""

    def __init__(self) -> None:
        super().__init__(-1.0, 1.0)
