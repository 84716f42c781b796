"""The base of AP2's values: units with a mean and a variance, assumed to be independent."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from momentprop.dispatch import Transform
from momentprop.dispatch.elements import elements_of
from momentprop.dispatch.memory import in_order_of
from momentprop.kernels.fuse import fused
from momentprop.values.base import Value, as_tensor, may_look_at
from momentprop.values.given_distributions import moments_of, require_independent
from momentprop.values.given_noise import not_noise, the_variance
from momentprop.values.origin import Origin, applied, combined, writes_to
from momentprop.values.uncertain import Uncertain


class Independent(Uncertain):
    """Independent units with mean `loc` and variance `variance`; subclasses choose the distribution.

    `variance` is a number or a tensor that broadcasts to the shape of `loc`; zero is legal and means certainty. You can
    give the standard deviation instead, as `stddev=`.
    """

    loc: Tensor
    variance: Tensor
    origin: ClassVar[tuple[Origin, int] | None] = None  # with the number of writes to its memory at that time
    remedy: ClassVar[str] = (
        ", or let `momentprop.propagate` compute its moments, with `fallback='quadrature'` (if it is elementwise), "
        "`fallback='monte_carlo'` (if not), or `fallback='linearize'` (if it is smooth)"
    )
    law: ClassVar[Any] = None  # the distribution given as an argument of a call, to draw from
    number: ClassVar[float | None] = None  # the variance of all units, set where nobody can write to the tensor
    given: ClassVar[Any] = None  # for a random weight, the `Joint` that was given
    note: ClassVar[Any] = None  # set on attention scores and weights: see `rules.attention.notes`

    def __init__(
        self,
        loc: Tensor | float,
        variance: Tensor | float | None = None,
        *,
        stddev: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.loc = as_tensor(loc, "loc")
        variance = the_variance(variance, stddev, ("variance", "stddev"), validate_args)
        if variance is None:
            raise TypeError(f"a {type(self).__name__} needs a variance: give `variance=` or `stddev=`")
        self.variance = _variance_like(self.loc, variance)
        if may_look_at(self.loc, validate_args):
            _require_moments(self.loc.detach(), self.variance.detach() if isinstance(variance, Tensor) else variance)

    @classmethod
    def of(cls, *parts: Any) -> Self:
        """Return a value of this type with the given mean and variance, without checking them."""
        value = object.__new__(cls)
        value.loc, value.variance = parts
        return value

    @property
    def requires_grad(self) -> bool:
        """Whether a component requires a gradient."""
        return self.loc.requires_grad or self.variance.requires_grad

    def through(self, kernel: Any, plain: Callable[[Tensor], Tensor] | None, *more: Tensor) -> Self:
        r"""Return the value of $f(X)$ by an elementwise kernel; `plain` is $f$, and `more` are its further inputs."""
        return self.transformed(Transform(kernel, plain, more))

    def transformed(self, function: Transform) -> Self:
        """Return the value of a function of each element."""
        kernel, plain, more, by_partials, of_more, key = function
        if kernel is None:
            return self
        if by_partials or plain is None:
            result = self.of(*fused(kernel, plain, self.loc, self.variance, *more, key=key))
        else:
            moments = kernel(self.loc, in_order_of(self.loc, self.variance), *more)
            result = self.of(moments.mean, moments.variance)
        if of_more is not None:
            result.remember(combined(of_more, [self.source, *more]))
        elif plain is not None and not more:
            origin = applied(plain, self)
            result.origin = None if origin is None else (origin, 0)  # type: ignore[misc] # written to 0 times so far
        return result

    def remember(self, origin: Origin | None) -> None:
        """Remember the origin that the elements are a function of."""
        self.origin = None if origin is None else (origin, writes_to(self))  # type: ignore[misc]

    def replace(self, parts: Sequence[Tensor], origin: Any = None) -> None:
        """Replace mean and variance by others; attention scores that were scaled in place keep their note."""
        if self.note is not None and origin is not None and origin[0].base is self:
            origin = (origin[0].of_base(self._as_it_is()), origin[1])
        super().replace(parts, origin)

    def settle(self, parts: Sequence[Tensor]) -> None:
        """Replace mean and variance by copies, which keep origin and note."""
        note = None if self.note is None else self.note.moved(self, *parts[:2])
        source = self.source.of_base(self._as_it_is()) if self.source.base is self else self.source
        super().replace(parts, (source, writes_to(self)))
        self.note = note  # type: ignore[misc]

    def copied(self) -> Self:
        """Return a copy with the same origin and elements."""
        source, copy = self.source, self.of(*(part.clone() for part in self.parts))
        if source.base is self:
            source = source.of_copies(copy.loc, copy.variance)
        copy.remember(source)
        copy.elements = (elements_of(self), 0)  # type: ignore[misc]
        return copy

    def _as_it_is(self) -> Self:
        """Return the value with its present components, which are about to be replaced."""
        value = self.of(*self.parts)
        value.memory, value.note = self.memory, self.note  # type: ignore[misc]
        return value

    @classmethod
    def certain(cls, tensor: Tensor) -> Self:
        """Return a tensor as a value of zero variance."""
        return cls.of(tensor, torch.zeros_like(tensor))

    @property
    def source(self) -> Origin:
        """The origin that the elements are a function of: the value itself by default and after an overwrite."""
        if self.origin is not None and self.origin[1] == writes_to(self):
            return self.origin[0]
        return Origin(self, self.loc, self.variance, writes_to(self), _identity)

    def sample(self, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a tensor of the value's shape, or `n` of them stacked along a new first dimension."""
        shape = self.shape if n is None else (n, *self.shape)
        if self.law is not None and generator is None:
            drawn: Tensor = self.law.sample(() if n is None else (n,))
            return drawn
        noise = torch.randn(shape, generator=generator, dtype=self.dtype, device=self.device)
        return torch.addcmul(self.loc, self.stddev, noise)

    def _moments_along(self, dim: int) -> tuple[Tensor, Tensor]:
        return self.loc.movedim(dim, -1), torch.diag_embed(self.variance.movedim(dim, -1))

    def distribution(self) -> torch.distributions.Distribution:
        """Return the distribution of this value as a `torch.distributions.Distribution`."""
        return torch.distributions.Normal(self.loc, self.stddev)

    @classmethod
    def from_distribution(cls, distribution: torch.distributions.Distribution) -> Self:
        """Return the value with the mean and variance of any distribution of independent units that has them.

        >>> import torch, momentprop
        >>> momentprop.Normal.from_distribution(torch.distributions.StudentT(4.0, torch.ones(1)))
        Normal(loc=tensor([1.]),
               variance=tensor([2.]))
        """
        require_independent(distribution, cls.__name__)
        return cls(*moments_of(distribution))

    @classmethod
    def missing(
        cls, x: Tensor, mask: Tensor, mean: Tensor | float, variance: Tensor | float, *, noise: Tensor | float = 0.0
    ) -> Self:
        r"""Return inputs with missing elements, which get a `mean` and a `variance`, such as those of the data set.

        `mask` is true where an element of `x` is missing; the content of `x` there is ignored and may be NaN. `mean`
        and `variance` broadcast to the shape of `x`: numbers, or one for each channel. Observed elements have variance
        `noise`, by default zero.

        >>> import torch
        >>> from momentprop import Normal
        >>> Normal.missing(torch.tensor([0.7, float("nan")]), torch.tensor([False, True]), mean=0.1, variance=0.3)
        Normal(loc=tensor([0.7000, 0.1000]),
               variance=tensor([0.0000, 0.3000]))
        """
        x = as_tensor(x, "x")
        if mask.dtype != torch.bool:
            raise TypeError(
                f"mask must be boolean, and true where an element is missing, but is {mask.dtype}: write `mask.bool()`"
            )
        mask = _like(x, mask, "mask")
        mean, variance, noise = (
            _like(x, torch.as_tensor(given, dtype=x.dtype, device=x.device), name)
            for given, name in ((mean, "mean"), (variance, "variance"), (noise, "noise"))
        )
        return cls(torch.where(mask, mean, x), torch.where(mask, variance, noise))


def _identity(element: Tensor) -> Tensor:
    return element


def _variance_like(loc: Tensor, given: Tensor | float) -> Tensor:
    if not isinstance(given, Tensor):
        if isinstance(given, Value) or bool(getattr(given, "shape", ())):
            raise TypeError(not_noise("variance", given))
        return torch.full_like(loc, given)
    if given.dtype != loc.dtype:
        raise TypeError(f"loc is {loc.dtype} but variance is {given.dtype}: write `variance.to(loc.dtype)`")
    if given.device != loc.device:
        raise ValueError(f"loc is on {loc.device} but variance is on {given.device}: write `variance.to(loc.device)`")
    return given if given.shape == loc.shape else _like(loc, given, "variance")


def _like(loc: Tensor, given: Tensor, name: str) -> Tensor:
    try:
        return given.expand_as(loc).contiguous()  # views of a value must work on both components
    except RuntimeError:
        raise ValueError(
            f"{name} of shape {tuple(given.shape)} does not broadcast to loc of shape {tuple(loc.shape)}"
            f"{_other_shape(loc.shape, given.shape)}"
        ) from None


def _other_shape(loc: torch.Size, given: torch.Size) -> str:
    """Say what a shape may have been meant for: a covariance, or one number for each item or channel."""
    if len(given) > 1 and given[-1] == given[-2]:
        return ": give a covariance as `input_covariance=`, or to `momentprop.Joint.from_covariance`"
    if 0 < len(given) < len(loc) and given == loc[: len(given)]:
        return f": one number for each item has the shape {(*given, *[1] * (len(loc) - len(given)))}"
    if len(given) == 1 and len(loc) > 2 and given[0] == loc[1]:
        return f": one number for each channel has the shape {(*given, *[1] * (len(loc) - 2))}"
    return ""


def _require_moments(loc: Tensor, variance: Tensor | float) -> None:
    """Check the data of a value, with numbers that a GPU sends together; a comparison with NaN is false."""
    if loc.numel() == 0:
        return
    lowest = highest = 0.0
    if isinstance(variance, Tensor):
        lowest, highest, low, high = torch.stack([*loc.aminmax(), *variance.aminmax()]).tolist()
    else:
        low = high = variance
        if not loc.is_cuda:  # do not make a GPU wait for the mean alone
            lowest, highest = torch.stack(loc.aminmax()).tolist()
    missing = ": for missing inputs see `momentprop.Normal.missing`" if math.isnan(lowest) else ""
    _require(-math.inf < lowest <= highest < math.inf, f"loc must be finite, but has NaN or infinite elements{missing}")
    _require(abs(low) < math.inf and high < math.inf, "variance must be finite, but has NaN or infinite elements")
    _require(low >= 0, "variance must be non-negative, but has negative elements")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
