"""Random values that live inside a model, such as random weights: their noise is born where an operation meets them."""

from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.births import Births
from momentprop.correlation.gates import Gates
from momentprop.correlation.graph import depends_on
from momentprop.dispatch import Call
from momentprop.values import Independent


class Within:
    """The values that a pass has met and that it has not made itself, each with the one that stands for it."""

    def __init__(self, births: Births, gates: Gates) -> None:
        self.births, self.gates = births, gates
        self.made: dict[int, tuple[Tensor, Any]] = {}  # by the tensor of means, which must live on for its id

    def __bool__(self) -> bool:
        return bool(self.made)

    def known(self, value: Any) -> None:
        """Note that a value is an input or was made by the pass."""
        value.followed = self.gates

    def entered(self, call: Call) -> Call:
        """Return a call with values whose noise is born, in the place of those that were not met before.

        The values of the model stay as they are. One that is met twice has its noise once.
        """
        values = [self._entered(value) for value in call.values]
        if all(new is old for new, old in zip(values, call.values, strict=True)):
            return call
        return call.of(*values)

    def _entered(self, value: Any) -> Any:
        if getattr(value, "followed", None) is self.gates or not isinstance(value, Independent):
            return value
        if id(value.loc) in self.made:
            return self.made[id(value.loc)][1]
        moves = value.loc.requires_grad and depends_on(value.loc, self.births)
        if moves or not bool((value.variance != 0).any()):
            return value
        loc = value.loc
        with torch.enable_grad():
            born = loc if loc.requires_grad else loc.detach().requires_grad_()
            new = value.of(born.clone(), self.gates.variance(value.variance))
        self.births.add(new.loc if loc.requires_grad else born, own=value.variance)
        self.known(new)
        self.made[id(loc)] = loc, new
        return new
