"""Random values inside a model, such as random weights: their noise is born where an operation meets them."""

from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.births import Births
from momentprop.correlation.gates import Gates
from momentprop.correlation.graph import depends_on
from momentprop.correlation.shared_weights import Use, Weight, use_of
from momentprop.dispatch import Call
from momentprop.values import Independent, Joint


class Within:
    """The values that a pass has met but not made, each with its stand-in.

    A layer treats them as weights, whose noise comes with the layer's result: see `shared_weights`. If any other
    operation meets one, its noise is born at the value, which makes a batch's items interact.
    """

    def __init__(self, births: Births, gates: Gates) -> None:
        self.births, self.gates = births, gates
        self.made: dict[int, tuple[Tensor, Any]] = {}  # by the tensor of means, kept alive for its id
        self.weights: dict[int, Weight] = {}  # by its stand-in
        self.use: Use | None = None  # of weights in the running operation

    def __bool__(self) -> bool:
        return any(weight.by_graph for weight in self.weights.values())

    def known(self, value: Any) -> None:
        """Note that a value is an input or that the pass made it."""
        value.followed = self.gates

    def entered(self, call: Call) -> Call:
        """Return a call in which values not met before are replaced by ones whose noise is born.

        The model's values stay as they are. One met twice has its noise once.
        """
        self.use = None
        values = [self._entered(value) for value in call.values]
        if any(new is not old for new, old in zip(values, call.values, strict=True)):
            call = call.of(*values)
        self.met(call)
        return call

    def met(self, call: Call) -> None:
        """Note how weights enter a call."""
        weights = {id(value): self.weights[id(value)] for value in call.values if id(value) in self.weights}
        self.use = use_of(call, weights, self.gates.tracked) if weights else None
        for weight in weights.values():
            if self.use is None and not weight.by_graph:
                weight.by_graph = True
                shared = {} if weight.factors is None else {"factors": weight.factors, "sources": weight.sources}
                self.births.add(weight.loc, own=weight.own, of_weight=True, **shared)

    def add(self, value: Any, loc: Tensor, given: Any) -> None:
        """Add a weight: its stand-in, its means in the graph, and the original value."""
        noise = (given.own, given.factors, given.sources) if isinstance(given, Joint) else (given.variance,)
        self.weights[id(value)] = Weight(value, loc, *noise)

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
        if not loc.requires_grad:
            self.births.add_leaf(born)
        new.given = value.given  # type: ignore[misc]
        self.add(new, new.loc if loc.requires_grad else born, value if value.given is None else value.given)
        self.known(new)
        self.made[id(loc)] = loc, new
        return new
