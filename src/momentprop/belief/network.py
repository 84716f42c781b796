r"""Layered belief networks $p(X^1 \ldots X^l \mid X^0) = \prod_k \prod_j p(X^k_j \mid X^{k-1})$."""

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution

from momentprop.belief.conditionals import Conditional, require_states
from momentprop.belief.divergence import Divergence, forward_kl
from momentprop.belief.enumeration import Posterior, States, log_expectation, summed_over
from momentprop.belief.latent import Latent
from momentprop.propagate import Method, propagate
from momentprop.values import Normal, Sample, Value

Input = Tensor | Value | Distribution
"""The input $X^0$: a plain tensor (a batch of inputs), or random."""


class BeliefNetwork(nn.Module):
    r"""Layers of random units, each layer independent of the others given the one before it.

    A layer is an affine map followed by a unit of `momentprop.nn`, in an `nn.Sequential`; the units of a layer lie
    along the last dimension. Any torch module may stand before the unit, for a conditional that is not affine.

    >>> import torch
    >>> from torch import nn
    >>> from momentprop.nn import LogisticBernoulli
    >>> _ = torch.manual_seed(0)
    >>> network = BeliefNetwork(
    ...     nn.Sequential(nn.Linear(3, 4), LogisticBernoulli()),
    ...     nn.Sequential(nn.Linear(4, 2), LogisticBernoulli()),
    ... ).requires_grad_(False)
    >>> x = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    >>> network.exact(x)[-1].marginals
    tensor([[0.4553, 0.5948],
            [0.4565, 0.5921]], dtype=torch.float64)
    >>> network.propagate(x)[-1].loc
    tensor([[0.4553, 0.5949],
            [0.4566, 0.5922]])
    >>> network.log_likelihood(x, torch.tensor([1.0, 0.0]))
    tensor([-1.6973, -1.6889], dtype=torch.float64)

    The input $X^0$ is a tensor of one or many inputs, or random: a `torch.distributions.Bernoulli` (exact inference
    sums over its states), another distribution, or a `momentprop.Normal`.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        if not layers:
            raise ValueError("a belief network needs at least one layer")
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        """The last layer: drawn in training mode, and layer-wise expectations (AP1) in evaluation mode."""
        *_, last = self._each_layer(x)
        return last

    def conditional(self, k: int, state: Tensor) -> Conditional:
        r"""$p(X^k \mid X^{k-1} = \mathrm{state})$, where layer 1 is the one after the input."""
        if not 1 <= k <= len(self.layers):
            raise IndexError(f"the layers are numbered from 1 to {len(self.layers)}, but layer {k} was requested")
        return self._latent(k).given(state)

    def sample(self, x: Input, n: int) -> list[Tensor]:
        """Draw all layers `n` times; each is a tensor with the draws along its first dimension."""
        return [value.loc for value in self._each_layer(Sample.of(_draws(x, n)))]

    def propagate(self, x: Input, method: Method = "ap2", **options: Any) -> list[Any]:
        """The value of every layer by one of the three methods: `Mean`, `Normal` or `Estimate`.

        Args:
            x: the input, plain or random.
            method: as in `momentprop.propagate`.
            **options: further options of `momentprop.propagate`, such as `samples`, `seed` and `family`.
        """

        def every_layer(x: Any) -> list[Any]:
            drawn = x.sample() if isinstance(x, Distribution) else x  # a value would keep only its moments
            return list(self._each_layer(drawn))

        given = Normal.from_distribution(x) if isinstance(x, Distribution) and method != "sample" else x
        return propagate(every_layer, given, method=method, **{"covariance": False, **options})  # type: ignore[no-any-return]

    def exact(self, x: Tensor | Bernoulli, *, factorized: bool = False) -> list[Posterior]:
        r"""The distribution of every layer, by summing over the states of the layer before, in double precision.

        $$p(X^k \mid x^0) = \sum_{x^{k-1}} p(X^k \mid x^{k-1})\, p(x^{k-1} \mid x^0)$$

        All layers must be binary, with at most 12 units. With `factorized`, the product of its marginals
        replaces every layer before the next sum: this is the feed-forward inference that AP1 and AP2 approximate.
        """
        return self._exact(States.of(x), len(self.layers), factorized)

    def log_likelihood(
        self,
        x: Input,
        y: Tensor,
        method: Literal["exact", "ap1", "ap2", "sample"] = "exact",
        *,
        samples: int = 1000,
    ) -> Tensor:
        r"""$\log p(X^l{=}y \mid x)$, one number for each input.

        Args:
            x: the input, plain or random.
            y: a state of the last layer, or one for each input. For a continuous layer the result is the density with
                respect to the layer's own measure (a stochastic rectifier has an atom at zero).
            method: `"exact"` sums over the states of the layer before the last; `"ap1"` and `"ap2"` treat the last
                layer as independent units with the propagated means (and variances); `"sample"` averages
                $p(y \mid x^{l-1})$ over draws of the layer before the last.
            samples: the number of these draws.
        """
        if method == "exact":
            hidden = self._exact(States.of(x), len(self.layers) - 1)
            before = hidden[-1].as_states() if hidden else States.of(x)
            return log_expectation(before, self._latent(len(self.layers)).given(before.states), y)
        if method == "sample":
            state = Sample.of(_draws(x, samples))
            for layer in self.layers[:-1]:
                state = layer(state)
            each = self._latent(len(self.layers)).given(state.loc).log_prob(y).sum(-1)
            return torch.logsumexp(each, 0) - math.log(samples)
        if method in ("ap1", "ap2"):
            return self._log_likelihood_of_units(x, y, method)
        raise ValueError(f"unknown method {method!r}: choose 'exact', 'ap1', 'ap2' or 'sample'")

    def kl(self, x: Tensor | Bernoulli, method: Method = "ap2", **options: Any) -> list[Divergence]:
        r"""The forward divergence $KL(p \| q)$ of every layer's exact $p$ to the factorized $q$ of a method, in nats.

        It is infinite if `q` excludes a state that `p` allows, which happens with few samples.
        """
        values = self.propagate(x, method, **options)
        return [forward_kl(p, value.loc) for p, value in zip(self.exact(x), values, strict=True)]

    def _each_layer(self, x: Any) -> Iterator[Any]:
        for layer in self.layers:
            x = layer(x)
            yield x

    def _latent(self, k: int) -> Latent:
        return Latent.of(self.layers[k - 1])

    def _exact(self, before: States, layers: int, factorized: bool = False) -> list[Posterior]:
        result = []
        for k in range(1, layers + 1):
            given = self._latent(k).given(before.states)
            posterior = summed_over(before, given, f"layer {k}")
            result.append(posterior)
            before = (posterior.factorized() if factorized else posterior).as_states()
        return result

    def _log_likelihood_of_units(self, x: Input, y: Tensor, method: Method) -> Tensor:
        value = self.propagate(x, method)[-1]
        step = self._latent(len(self.layers)).step
        if step is not None:
            require_states(y, step)
            q = (value.loc - step.low) / (step.high - step.low)
            return torch.where(y == step.high, q, 1 - q).log().sum(-1)
        if method == "ap1":
            raise ValueError("means alone give a continuous layer no density: use method='ap2', or 'sample'")
        return value.distribution().log_prob(y).sum(-1)  # type: ignore[no-any-return]


def _draws(x: Input, n: int) -> Tensor:
    """Independent draws of the input along a new first dimension; a plain input is repeated."""
    if isinstance(x, Distribution):
        return x.sample((n,))
    return x.sample(n) if isinstance(x, Value) else x.expand(n, *x.shape)
