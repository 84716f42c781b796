r"""Normal values with random directions that know how units depend on each other.

The $K$ *probes* $h_1, \dots, h_K$ of a value are draws of the joint deviations of all its units from their means, made
from the same noise at every unit. The mean of $h_i h_j$ over the probes is the covariance of two units, with an error
of $\sqrt{2/K}$ of the variance for $i = j$. A pass with `correlation.probes.Probing` fills them in.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from momentprop.values.normal import Normal


class Probed(Normal):
    """Normal units with `count` probes, of shape (count, *shape); a subclass for each count is made by `with_probes`.

    It uses the rules of `Normal`, whose results do not `carry` probes yet: these are zero until filled in.
    """

    loc: Tensor
    variance: Tensor
    probes: Tensor
    count: ClassVar[int] = 0
    carries: ClassVar[bool] = False

    @classmethod
    def of(cls, *parts: Any) -> Self:
        """Return a value with mean, variance and, if they are known, probes."""
        loc, variance, *more = parts
        value = object.__new__(cls)
        value.loc, value.variance = loc, variance
        value.carries = bool(more)  # type: ignore[misc]
        value.probes = more[0] if more else loc.new_zeros(()).expand((cls.count, *loc.shape))
        return value

    def each(self, function: Callable[[Tensor], Any]) -> Any:
        """Apply a function that moves or converts elements to every component, and to each of the probes."""
        loc, variance = function(self.loc), function(self.variance)
        if not self.carries:
            return self.assembled(loc, variance)
        return self.assembled(loc, variance, torch.vmap(function)(self.probes))

    def carry(self, probes: Tensor) -> None:
        """Fill in the probes."""
        self.probes, self.carries = probes, True  # type: ignore[misc]

    def share(self) -> list[int]:
        """Make the value ready for a view: each probe needs memory of its own, which expanded ones have not."""
        if self.memory is None and self.probes.shape[0] > 1 and self.probes.stride(0) == 0:
            self.probes = self.probes.contiguous()
        return super().share()

    def replace(self, parts: Sequence[Tensor], origin: Any = None) -> None:
        """Replace all components by others."""
        super().replace(parts, origin)
        self.carries = True  # type: ignore[misc]


@functools.cache
def with_probes(count: int) -> type[Probed]:
    """Return the type of normal values with that many probes."""
    return type(f"Probed{count}", (Probed,), {"count": count, "__module__": __name__, "__doc__": Probed.__doc__})


def as_normal(x: Any) -> Any:
    """Return a value without its probes, and anything else itself."""
    return Normal.of(x.loc, x.variance) if isinstance(x, Probed) else x


def unprobed(kind: type[Any]) -> type[Any]:
    """Return the type of the same values without probes."""
    return Normal if issubclass(kind, Probed) else kind
