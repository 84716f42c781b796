"""The delta method: correlations by the Jacobian of the plain network at the mean of its inputs."""

from collections.abc import Sequence
from typing import Any

from momentprop.correlation.births import Births
from momentprop.correlation.following import Following, marked, noise_of
from momentprop.correlation.gates import Gates
from momentprop.dispatch import Call, Kind, where
from momentprop.values import Uncertain


class Linearly(Following):
    """Takes the noise of the inputs alone as born, in a pass of plain means."""

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """Take the noise of the inputs as born with them."""
        self.births, self.gates = Births(), Gates(self.tracked)
        for source, value in zip(inputs, given, strict=True):
            if isinstance(source, Uncertain):
                value.loc, birth = marked(value.loc)
                self.births.add(birth, **noise_of(source))
        self.inputs = len(self.births.found)

    def before(self, call: Call) -> Call:
        """Let a call be what it is."""
        return call

    def after(self, call: Call, result: Any) -> Any:
        """Refuse noise inside the model, which a Jacobian by the inputs does not know."""
        if call.operation.kind is Kind.NOISE and call.operation.acts(call):
            raise ValueError(
                f"method='linear' knows the noise of the inputs alone, but {call.op!r} at {where()} adds its own: use "
                "method='ap2'"
            )
        return result
