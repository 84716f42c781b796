"""A watcher that collects, in an AP2 pass, what noise is born where."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.births import Births
from momentprop.correlation.gates import Gates
from momentprop.correlation.rests import of_shared_draw, rest, summing_to_zero
from momentprop.correlation.slopes import sloped
from momentprop.correlation.within import Within
from momentprop.dispatch import Call, Kind, where
from momentprop.dispatch.context import Watcher
from momentprop.values import Independent, Joint

_LINEAR = (Kind.MOVES, Kind.LINEAR)


class Following(Watcher):
    """Collects the births of a pass; it needs the autograd graph of the means.

    With `tracked`, gradients can flow through the covariance to whatever the pass depends on.
    """

    enters_composites = True
    needs_graph = True

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked
        self.births = Births()
        self.gates = Gates(tracked)
        self.inputs = 0  # how many of the births, the first ones, are the inputs'
        self.within = Within(self.births, self.gates)

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """Treat the noise of the inputs, which the model gets as these values, as born with them."""
        self.births, self.gates = Births(), Gates(self.tracked)
        self.within = Within(self.births, self.gates)
        for source, value in zip(inputs, given, strict=True):
            if isinstance(value, Independent):
                value.loc, birth = marked(value.loc)
                self.births.add(birth, **noise_of(source if isinstance(source, Joint) else value))
                value.variance = self.gates.variance(value.variance)
                value.origin = None  # type: ignore[misc]  # it is that of the tensors from before
                self.within.known(value)
        self.inputs = len(self.births.found)

    def before(self, call: Call) -> Call:
        """Treat the noise of values inside the model as born where an operation first meets them."""
        return self.within.entered(call)

    def after(self, call: Call, result: Any) -> Any:
        """Remember the noise that an operation adds; linear ones add none."""
        if isinstance(result, Joint):
            raise TypeError(
                f"a Joint inside the model meets a Normal at {where()}, and its correlations cannot be followed there: "
                "give it as an argument of the model, or write `Normal(value.loc, value.variance)`"
            )
        kind = call.kind
        if isinstance(result, tuple | list):
            for each in result if kind not in _LINEAR else ():
                self._bear(call, each)
        elif call.op == "detach":
            result.loc = self.gates.detached(call.values[0].loc)
        elif kind not in _LINEAR or _is_joint(call, result):
            self._bear(call, result)
        if self.within.use is not None:
            self._shared(result, result.variance.detach().clamp(min=0.0))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, Independent):
                self.within.known(each)
        return result

    def _shared(self, result: Any, noise: Tensor) -> None:
        """Remember the weights that a result moves with, which have noise of about this variance."""
        self.births.replace_last(result.loc, use=self.within.use, noise=noise)

    def _bear(self, call: Call, result: Any) -> None:
        if not isinstance(result, Independent) or any(result is value for value in call.values):
            return
        if any(result.loc is value.loc for value in call.values):
            result.loc = result.loc.clone()
        birth = result.loc
        if not birth.requires_grad:
            _require_certain(call)
            result.loc, birth = marked(birth)
        with self.gates.shut():  # a corrected variance depends on the mean
            own, source, slope = rest(call, result, self.tracked)
        if source is not None and slope is not None and not self.tracked:
            result.loc = birth = sloped(result.loc, source, slope)
        noise: dict[str, Any] = {}
        along = _common(call, result)
        if along and call.operation.along is not None:
            own, noise = summing_to_zero(own, along), {"along": along, "sums_to_zero": True}
        elif along:
            shared = of_shared_draw(call)
            own, noise = own - shared * shared, {"along": along, "shared": shared}
        self.births.add(birth, own=own.clamp(min=0.0), **noise)
        result.variance = self.gates.variance(result.variance)


def noise_of(source: Any) -> dict[str, Any]:
    """Return an input's noise: each unit's own, and what an item's units share."""
    if not isinstance(source, Joint):
        return {"own": source.variance}
    shared = {"factors": source.factors, "sources": source.sources, "batch_dim": source.batch_dim}
    return {"own": source.own, **shared}


def marked(loc: Tensor) -> tuple[Tensor, Tensor]:
    """Return means that a model can write to, and the tensor that births at them refer to."""
    if loc.requires_grad:
        return loc, loc
    loc = loc.detach().requires_grad_()
    with torch.enable_grad():
        return loc.clone(), loc


def _is_joint(call: Call, result: Any) -> bool:
    """Return whether a sum of values with one origin was evaluated as one function of it."""
    return (
        isinstance(result, Independent)
        and result.origin is not None
        and any(value is not call.values[0] for value in call.values)
    )


def _common(call: Call, result: Any) -> tuple[int, ...]:
    """Return the dimensions along which the units' noises have something in common."""
    if call.kind is Kind.NOISE:
        return tuple(dim % result.ndim for dim in call.operation.shared(call))
    if call.op == "softmax" and result.ndim:
        return tuple(call.operation.dims(call) or ())
    return ()


def _require_certain(call: Call) -> None:
    if call.kind is not Kind.NOISE and any(value.loc.requires_grad for value in call.values):
        raise RuntimeError(
            f"the mean of {call.op!r} at {where()} does not move with its inputs, so that correlations cannot be "
            "followed through it: write `covariance=False`, or give the operation a rule that torch can differentiate"
        )
