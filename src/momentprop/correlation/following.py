"""A watcher that collects in a pass of AP2 what is born where."""

from collections.abc import Sequence
from typing import Any

import torch

from momentprop.correlation.births import Births
from momentprop.correlation.gates import Gates
from momentprop.correlation.rests import rest
from momentprop.dispatch import Call, Kind
from momentprop.dispatch.context import Watcher
from momentprop.values import Independent

_LINEAR = (Kind.MOVES, Kind.LINEAR)


class Following(Watcher):
    """Collects the births of a pass; it needs the autograd graph of the means."""

    enters_composites = True
    needs_graph = True

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked
        self.births = Births()
        self.gates = Gates(tracked)
        self.inputs = 0  # how many births are those of inputs: the first ones

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """Take the noise of the inputs, which the model is given as these values, as born with them."""
        self.births, self.gates = Births(), Gates(self.tracked)
        for _, value in zip(inputs, given, strict=True):
            if isinstance(value, Independent):
                if not value.loc.requires_grad:
                    value.loc.requires_grad_()
                self.births.add(value.loc, own=value.variance)
                value.variance = self.gates.variance(value.variance)
        self.inputs = len(self.births.found)

    def after(self, call: Call, result: Any) -> Any:
        """Remember what an operation bears; linear ones bear nothing."""
        if not isinstance(result, Independent):
            if isinstance(result, tuple | list) and call.kind not in _LINEAR:
                for each in result:
                    if isinstance(each, Independent):
                        self._bear(call, each)
            return result
        if call.op == "detach":
            result.loc = self.gates.detached(call.values[0].loc)
        elif call.kind not in _LINEAR or self._is_joint(call, result):
            if not any(result is value for value in call.values):
                self._bear(call, result)
        return result

    def _is_joint(self, call: Call, result: Any) -> bool:
        """Whether a sum of values of one origin was evaluated as one function of it."""
        return result.origin is not None and any(value is not call.values[0] for value in call.values)

    def _bear(self, call: Call, result: Any) -> None:
        if any(result.loc is value.loc for value in call.values):
            result.loc = result.loc.clone()
        if not result.loc.requires_grad:
            result.loc = result.loc.detach().requires_grad_()
        born = rest(call, result, self.tracked)
        if type(result).__name__ == "Normal":
            born = born.clamp(min=0.0)
        shared = call.operation.shared(call) if call.kind is Kind.NOISE and hasattr(call.operation, "shared") else ()
        if shared:
            raise NotImplementedError
        self.births.add(result.loc, own=born)
        result.variance = self.gates.variance(result.variance)
