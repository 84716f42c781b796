"""The moments of many draws, with their standard errors."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from momentprop.dispatch import MissingRule, where
from momentprop.dispatch.operand import CONVERSIONS
from momentprop.values.predictions import sum_to_one, warn_of_one_score
from momentprop.values.uncertain import Uncertain

_CONVERSIONS = "bfloat16 clone contiguous cpu cuda detach double float half to type".split()
_QUANTILES = 2**24  # the most numbers that `torch.quantile` takes


class Estimate(Uncertain):
    r"""Mean and variance of a number of draws, each with its standard error.

    `propagate(..., method="sample")` returns it. It is a result only: it can be indexed, but no operation has a rule
    for it. While they are few, it keeps the `draws` themselves, stacked along a new first dimension (otherwise None),
    and uses them for class probabilities, entropies and intervals.

    >>> import torch, momentprop
    >>> scores = torch.tensor([[2.0, 0.0, -1.0]])
    >>> y = momentprop.propagate(lambda x: x, scores, input_variance=4.0, method="sample", samples=4000, seed=0)
    >>> y.draws.shape, y.predict(-1)
    (torch.Size([4000, 1, 3]), tensor([0]))
    """

    loc: Tensor
    variance: Tensor
    loc_error: Tensor
    variance_error: Tensor
    draws: ClassVar[Any] = None  # not a component

    def __init__(self, loc: Tensor, variance: Tensor, loc_error: Tensor, variance_error: Tensor) -> None:
        self.loc, self.variance = loc, variance
        self.loc_error, self.variance_error = loc_error, variance_error

    def __getattr__(self, name: str) -> Any:
        hint = ": draw with `covariance=True`" if name == "covariance" else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __getitem__(self, index: Any) -> "Estimate":
        """Choose elements as from a tensor, with their draws, but without a covariance of all units."""
        parts = (self.loc, self.variance, self.loc_error, self.variance_error)
        chosen = Estimate.of(*(part[index] for part in parts))
        if self.draws is not None:
            places = index if isinstance(index, tuple) else (index,)
            chosen.draws = self.draws[(slice(None), *places)]  # type: ignore[misc]
        return chosen

    def __iter__(self) -> Iterator["Estimate"]:
        return (self[place] for place in range(len(self)))

    def mutual_information(self, dim: int = -1, points: int | None = None) -> Tensor:
        """The part of the entropy due to the noise, in nats: the mean divergence of a draw from the class posterior.

        With few draws it is too small, by about the number of classes over twice the number of draws.
        """
        log_q, log_p = self._log_q(dim), self._log_p(dim)
        apart = torch.where(log_p == -torch.inf, 0.0, log_p - log_q)
        return (log_p.exp() * apart).sum(-1).mean(0)

    def interval(self, p: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval of each unit: quantiles of the draws, if these were kept.

        Otherwise they are those of a normal unit with the moments of the draws.
        """
        normal = super().interval(p)
        if self.draws is None or self.draws.numel() > _QUANTILES:
            return normal
        ends = self.draws.new_tensor([0.5 - p / 2, 0.5 + p / 2], dtype=self.loc.dtype)
        low, high = torch.quantile(self.draws.to(self.loc.dtype), ends, dim=0)
        return low, high

    def distribution(self) -> Distribution:
        """Return torch's `Normal` with the moments of the draws."""
        return torch.distributions.Normal(self.loc, self.stddev)

    def each(self, function: Callable[[Tensor], Any]) -> Any:
        """Apply a function that moves or converts elements to every component, and to the draws."""
        found = super().each(function)
        if self.draws is not None and isinstance(found, Estimate):
            found.draws = function(self.draws)  # type: ignore[misc]
        return found

    @classmethod
    def without_rule(cls, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> NoReturn:
        """Refuse an operation: what follows the model must be part of each draw."""
        if function.__name__ in CONVERSIONS:
            super().without_rule(function, args, kwargs)
        raise MissingRule(
            f"no {cls.__name__} rule for {function.__name__!r} at {where()}: an {cls.__name__} is a result, with a "
            "mean `.loc` and a `.variance`. Apply the operation to each draw, as in "
            "`propagate(..., method='sample', outputs=lambda y: ...)`"
        )

    def _gives_probabilities(self, dim: int) -> bool:
        if self.draws is None:
            return super()._gives_probabilities(dim)
        return sum_to_one(self.draws, dim if dim < 0 else dim + 1)

    def _log_q(self, dim: int) -> Tensor:
        found = self._log_p(dim)
        warn_of_one_score(self.loc, dim)
        return torch.logsumexp(found, 0) - math.log(len(found))

    def _log_p(self, dim: int) -> Tensor:
        """Return the logarithms of the class probabilities of each draw, with the classes in the last dimension."""
        if self.draws is None:
            raise ValueError(
                f"this {type(self).__name__} has no draws, because there were too many to keep, or because it was "
                "copied or loaded: take the softmax of each draw, as in "
                "`propagate(..., method='sample', outputs=lambda y: y.softmax(-1))`"
            )
        scores = self.draws.movedim(dim if dim < 0 else dim + 1, -1).to(self.loc.dtype)
        return scores.log() if sum_to_one(scores, -1) else torch.log_softmax(scores, -1)


def _converting(name: str) -> Callable[..., Any]:
    def convert(self: Estimate, *args: Any, **kwargs: Any) -> Any:
        def converted(part: Tensor) -> Any:
            found = getattr(part, name)(*args, **kwargs)
            if isinstance(found, Tensor) and not found.is_floating_point():
                raise TypeError(f"an {type(self).__name__} cannot have elements of {found.dtype}: convert `.loc` alone")
            return found

        return self.each(converted)

    convert.__name__ = name
    convert.__doc__ = f"As `torch.Tensor.{name}`, of every component and of the draws."
    return convert


for _name in _CONVERSIONS:
    setattr(Estimate, _name, _converting(_name))


class JointEstimate(Estimate):
    """An `Estimate` with the `covariance` of the draws over the units of an item: (B, n, n), or (n, n) for one item."""

    loc: Tensor
    variance: Tensor
    loc_error: Tensor
    variance_error: Tensor
    covariance: Tensor

    def __init__(
        self, loc: Tensor, variance: Tensor, loc_error: Tensor, variance_error: Tensor, covariance: Tensor
    ) -> None:
        super().__init__(loc, variance, loc_error, variance_error)
        self.covariance = covariance

    def distribution(self) -> MultivariateNormal:
        """Return torch's `MultivariateNormal` of the flattened units, if all are one item."""
        if self.covariance.ndim > 2:
            raise ValueError(
                "the items of an estimate may lie along any dimension: write "
                "`MultivariateNormal(y.loc.flatten(1), y.covariance)` if they lie along the first one"
            )
        return MultivariateNormal(self.loc.flatten(), self.covariance)
