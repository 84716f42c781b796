"""Units that depend on each other: each unit's own noise, and noise that they share."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, LowRankMultivariateNormal, MultivariateNormal

from momentprop.dispatch import Operand
from momentprop.kernels.joint_posterior import posterior
from momentprop.kernels.root import root, triangular_root
from momentprop.values import shown
from momentprop.values.base import as_tensor, may_look_at
from momentprop.values.given_covariance import (
    as_factors,
    as_matrices,
    as_own,
    items_along,
    require_covariance,
    require_known,
)
from momentprop.values.given_distributions import moments_of
from momentprop.values.normal import Normal
from momentprop.values.once import Once
from momentprop.values.predictions import warn_of_one_score
from momentprop.values.sources import Segment, Sources, aligned, along, new_event, of_units_along, places
from momentprop.values.uncertain import Uncertain

BatchDim = int | None | Literal["auto"]


class Joint(Uncertain):
    r"""Units with mean `loc`, each unit's `own` noise, and noise that they share: `factors` of shape (K, ...).

    $X_i = \mu_i + \sqrt{d_i}\,\epsilon_i + \sum_k F_{ki} z_k$ with independent standard normal $\epsilon_i$, $z_k$. So
    $\operatorname{Cov}(X_i, X_j) = \sum_k F_{ki}F_{kj}$ and $\operatorname{Var} X_i = d_i + \sum_k F_{ki}^2$.

    >>> import torch
    >>> x = Joint(torch.zeros(2), own=1.0, factors=torch.tensor([[1.0, 2.0]]))
    >>> x.covariance
    tensor([[2., 2.],
            [2., 5.]])
    >>> (x[0] - x[1]).variance
    tensor(3.)

    The items of a batch lie along `batch_dim` and are independent of each other: each has its own sources $z_k$. By
    default that is the first dimension, and a vector is one item; None makes the whole value one item. Values that come
    from one value share its sources; values made separately are independent.
    """

    loc: Tensor
    own: Tensor
    factors: Tensor
    takes: ClassVar[tuple[type[Operand], ...]] = (Normal,)
    follows: ClassVar[bool] = True
    batch_dim: ClassVar[int | None] = None  # every value has its own: not a component
    sources: ClassVar[Sources] = ()
    _matrix: ClassVar[Any] = None  # of a lazy value: how to compute the covariance
    _cross: ClassVar[Any] = None
    _rows: ClassVar[Any] = None

    def __init__(
        self,
        loc: Tensor | float,
        own: Tensor | float = 0.0,
        factors: Tensor | None = None,
        *,
        batch_dim: BatchDim = "auto",
        validate_args: bool | None = None,
    ) -> None:
        self.loc = as_tensor(loc, "loc")
        self.batch_dim = items_along(self.loc, batch_dim)  # type: ignore[misc]
        self.own = as_own(self.loc, own, validate_args)
        self.factors = as_factors(self.loc, factors, validate_args)
        self.sources = new_event(len(self.factors), self._items)  # type: ignore[misc]

    @classmethod
    def from_covariance(
        cls, loc: Tensor, covariance: Tensor, *, batch_dim: BatchDim = "auto", validate_args: bool | None = None
    ) -> Self:
        """Return the value with a covariance over the units of an item: (n, n) for all items, or (B, n, n).

        >>> import torch
        >>> Joint.from_covariance(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]])).correlation
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]])
        """
        loc = as_tensor(loc, "loc")
        dim = items_along(loc, batch_dim)
        matrices = as_matrices(loc, covariance, dim)
        if may_look_at(matrices, validate_args):
            require_covariance(matrices)
        return cls.lazy(loc, lambda: matrices, batch_dim=dim)

    @classmethod
    def lazy(
        cls,
        loc: Tensor,
        covariance: Callable[[], Tensor],
        batch_dim: int | None = 0,
        cross: Callable[[int], Tensor] | None = None,
        rows: Callable[[], Tensor] | None = None,
        sources: Sources | None = None,
    ) -> Self:
        """Return a value that computes its covariance when you first ask for it.

        `covariance` returns a tensor of shape (B, n, n), or (n, n) if `batch_dim` is None. `cross` returns the
        covariance with an input, for `cross_covariance(which=...)`. `rows` returns the factors, as (B, K, n), if their
        sources are not new; by default the factors are a root of the covariance.
        """
        value = object.__new__(cls)
        value.loc = loc
        value.batch_dim = items_along(loc, batch_dim)  # type: ignore[misc]
        value._matrix, value._cross, value._rows = Once(covariance), cross, rows  # type: ignore[misc]
        value.sources = new_event(value.units, value._items) if sources is None else sources  # type: ignore[misc]
        return value

    @classmethod
    def from_distribution(cls, distribution: Distribution) -> Self:
        """Return the value of a `MultivariateNormal`, a `LowRankMultivariateNormal`, or independent units."""
        require_known(distribution)
        if isinstance(distribution, LowRankMultivariateNormal):
            factors = distribution.cov_factor.movedim(-1, 0).expand(-1, *distribution.mean.shape)
            return cls(distribution.mean, distribution.cov_diag, factors)
        if isinstance(distribution, MultivariateNormal):
            return cls.from_covariance(distribution.mean, distribution.covariance_matrix)
        return cls(*moments_of(distribution))

    @classmethod
    def of(cls, *parts: Any, batch_dim: int | None = None, sources: Sources | None = None) -> Self:
        """Return a value with the given components and sources, without checks; by default the sources are new."""
        value = object.__new__(cls)
        value.loc, value.own, value.factors = parts
        value.batch_dim = batch_dim  # type: ignore[misc]
        if sources is None:
            sources = new_event(len(parts[2]), value._items) if isinstance(parts[2], Tensor) else ()
        value.sources = sources  # type: ignore[misc]
        return value

    @classmethod
    def born(cls, *parts: Any, batch_dim: int | None = None, sources: Sources = ()) -> Self:
        """Return a value with new noise; every unit has its own."""
        return cls.of(*parts, batch_dim=batch_dim, sources=sources)

    @classmethod
    def taken_in(cls, value: Any) -> Self:
        """Return a value as this type: the noise of independent units is each unit's own."""
        if isinstance(value, Joint):
            return cls.born(*value.parts, batch_dim=value.batch_dim, sources=value.sources)
        nothing = value.loc.new_zeros(0, *value.shape)
        return cls.born(value.loc, value.variance, nothing, batch_dim=0 if value.ndim > 1 else None)

    @classmethod
    def certain(cls, tensor: Tensor) -> Self:
        """Return a tensor as a value without noise."""
        return cls.of(tensor, torch.zeros_like(tensor), tensor.new_zeros(0, *tensor.shape), sources=())

    def __getattr__(self, name: str) -> Any:
        if name not in ("own", "factors") or self._matrix is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        rows = root(self._matrices()) if self._rows is None else self._rows()
        made = {"own": torch.zeros_like(self.loc), "factors": self._as_rows(rows)}
        if torch.is_grad_enabled() or not self.loc.requires_grad:  # else they are made again once they need gradients
            self.__dict__.update(made)
        return made[name]

    def _as_rows(self, rows: Tensor) -> Tensor:
        """Return factors, given as (B, K, n), in the shape of the value."""
        if self.batch_dim is None:
            return rows[0].reshape(rows.shape[1], *self.shape)
        rest = [size for dim, size in enumerate(self.shape) if dim != self.batch_dim]
        return rows.reshape(*rows.shape[:2], *rest).movedim(0, self.batch_dim + 1)

    @property
    def aside(self) -> Any:
        """The dimension of the items and the sources of the factors."""
        return self.batch_dim, self.sources

    @aside.setter
    def aside(self, known: Any) -> None:
        self.batch_dim, self.sources = known  # type: ignore[misc]

    @property
    def is_lazy(self) -> bool:
        """Whether the covariance has not been computed yet."""
        return self._matrix is not None and not self._matrix.known

    @property
    def _items(self) -> int:
        return 1 if self.batch_dim is None else self.loc.shape[self.batch_dim]

    @property
    def units(self) -> int:
        """The number of units of one item."""
        sizes = (size for dim, size in enumerate(self.loc.shape) if dim != self.batch_dim)
        return torch.Size(sizes).numel()

    def by_items(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the value's shape as (B, n): the items, and the units of each."""
        return along(tensor.unsqueeze(0), self.batch_dim)[:, 0]

    def of_items(self, tensor: Tensor) -> Tensor:
        """Return a tensor of shape (B, n) in the value's shape."""
        return self._as_rows(tensor.unsqueeze(1))[0]

    def _matrices(self) -> Tensor:
        """Return the covariance of each item, (B, n, n), also if the value is one item."""
        if self._matrix is not None:
            matrix: Tensor = self._matrix()
            return matrix if matrix.ndim == 3 else matrix.unsqueeze(0)
        factors = along(self.factors, self.batch_dim)
        return factors.mT @ factors + torch.diag_embed(self.by_items(self.own))

    @property
    def covariance(self) -> Tensor:
        """The covariance of the units of an item, in the order of `flatten`: (B, n, n), or (n, n) for one item."""
        return self._matrices()[0] if self.batch_dim is None else self._matrices()

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The whole variance of every unit."""
        if self._matrix is not None:
            return self.of_items(self._matrices().diagonal(dim1=-2, dim2=-1).clamp(min=0.0))  # for its rounding
        return self.own + self.factors.square().sum(0)

    @property
    def correlation(self) -> Tensor:
        """The correlation of the units of an item; a unit without noise correlates with itself alone."""
        covariance = self.covariance
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        noisy = variance > 0
        scale = torch.where(noisy, torch.where(noisy, variance, 1.0).rsqrt(), 0.0)
        found = covariance * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        return torch.where(torch.eye(self.units, dtype=torch.bool, device=self.device), 1.0, found)

    def cross_covariance(self, other: "Joint | None" = None, *, which: int = 0) -> Tensor:
        """Return the covariance with the units of another value, (B, n, m), through the sources that both share.

        Without another value, return the covariance of a result of `propagate` with one of its inputs: `which` counts
        the random ones. The own noise of two values counts as independent, unless both are the same value.
        """
        if other is None:
            if self._cross is None:
                raise ValueError("this Joint does not know its input: give the other value, `y.cross_covariance(x)`")
            return self._cross(which)  # type: ignore[no-any-return]
        if other is self:
            return self.covariance
        (mine, others), dims, _ = aligned([self, other])
        found = along(mine, dims[0]).mT @ along(others, dims[1])
        return found[0] if dims[0] is None else found

    def covariance_along(self, dim: int) -> Tensor:
        """Return the covariance of the units along a dimension, (..., n, n), for every position along the others."""
        dim %= self.ndim
        if dim == self.batch_dim:
            raise ValueError(
                f"the items lie along dimension {dim}, and are independent of each other: give a dimension of the units"
            )
        if self._matrix is None:
            rows = self.factors.movedim(dim + 1, -1).movedim(0, -2)
            return rows.mT @ rows + torch.diag_embed(self.own.movedim(dim, -1))
        return of_units_along(self._matrices(), self.shape, self.batch_dim, dim)

    def probabilities(self, dim: int = -1, points: int | None = None) -> Tensor:
        r"""Return the class posterior $E\,\mathrm{softmax}(X)$ of logits along a dimension, with their covariance.

        It is deterministic and differentiable. See `kernels.joint_posterior` for its error, mostly below 2e-6 in KL
        divergence for 10 classes.

        >>> import torch
        >>> logits = Joint(torch.tensor([1.0, 0.0]), factors=torch.tensor([[3.0, 3.0]]))
        >>> logits.probabilities()  # what moves all logits alike changes nothing
        tensor([0.7311, 0.2689])
        """
        if self._gives_probabilities(dim):
            return super().probabilities(dim)
        warn_of_one_score(self.loc, dim)
        return posterior(*self._moments_along(dim), points).movedim(-1, dim)

    def _moments_along(self, dim: int) -> tuple[Tensor, Tensor]:
        return self.loc.movedim(dim, -1), self.covariance_along(dim)

    def sample(self, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a tensor of the value's shape, or `n` of them stacked along a new first dimension."""
        if n is None:
            return self.sample(1, generator=generator)[0]

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=self.dtype, device=self.device)

        found, start = self.loc + self.own.sqrt() * drawn(n, *self.shape), 0
        for segment in self.sources:
            part, start = self.factors[start : start + segment.number], start + segment.number
            shared = drawn(n, segment.number, max(segment.items) + 1)[..., places(segment, self.device)]
            rows = torch.einsum("nkb,bku->nbu", shared, along(part, self.batch_dim))
            found = found + self._as_rows(rows.movedim(0, 1))
        return found

    def distribution(self) -> MultivariateNormal:
        """Return torch's `MultivariateNormal` of the flattened units of each item; a singular one has no density."""
        lower = triangular_root(along(self.factors, self.batch_dim), self.by_items(self.own))
        pivots = lower.diagonal(dim1=-2, dim2=-1)
        smallest = 8 * torch.finfo(self.dtype).eps * self.by_items(self.variance).sqrt()
        if may_look_at(lower, None) and bool((pivots <= smallest).any()):
            raise ValueError("the covariance is singular, so that there is no density: use `sample` and `covariance`")
        loc = self.by_items(self.loc)
        parts = (loc[0], lower[0]) if self.batch_dim is None else (loc, lower)
        return MultivariateNormal(parts[0], scale_tril=parts[1], validate_args=False)

    def each(self, function: Callable[[Tensor], Any]) -> Any:
        """Apply a function that converts elements, and leaves them in place, to every component."""
        parts = [function(part) for part in self.parts]
        return self.of(*parts, batch_dim=self.batch_dim, sources=self.sources)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "batch_dim": self.batch_dim,
            "sources": [tuple(each) for each in self.sources],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.sources = tuple(Segment(*each) for each in self.sources)  # type: ignore[misc]

    def replace(self, parts: Any, origin: Any = None) -> None:
        """Replace the component tensors by others, also in a lazy value."""
        self._matrix = None  # type: ignore[misc]
        super().replace(parts, origin)

    @property
    def _printed(self) -> int:
        """The elements of all components: factors soon become too many to read."""
        return self.loc.numel() + (0 if self.is_lazy else self.own.numel() + self.factors.numel())

    def __repr__(self) -> str:
        if self._is_large:
            lazy, parts = self.is_lazy, {"loc": self.loc}
            note = "covariance=<on request>" if lazy else f"factors={len(self.factors)}"
            return shown.short(type(self).__name__, parts if lazy else {**parts, "variance": self.variance}, [note])
        if not self.is_lazy:
            return super().__repr__()
        indent = " " * (len(type(self).__name__) + 1)
        loc = repr(self.loc).replace("\n", f"\n{indent}    ")
        return f"{type(self).__name__}(loc={loc},\n{indent}covariance=<on request>)"
