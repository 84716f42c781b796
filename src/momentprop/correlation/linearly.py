"""The delta method: correlations by the Jacobian of the plain network at the mean of its inputs."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from momentprop.correlation.births import Births
from momentprop.correlation.following import Following, marked, noise_of
from momentprop.correlation.gates import Gates
from momentprop.correlation.within import Within
from momentprop.dispatch import Call, where
from momentprop.torch_compat.replica import Replica
from momentprop.values import Uncertain


class Linearly(Following):
    """Treats only the noise of inputs and random weights as born, in a pass of plain means."""

    enters_composites = False  # plain means pass them in one step

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """Treat the inputs' noise as born with them."""
        self.births, self.gates = Births(), Gates(self.tracked)
        for source, value in zip(inputs, given, strict=True):
            if isinstance(source, Uncertain):
                value.loc, birth = marked(value.loc)
                self.births.add(birth, **noise_of(source))
        self.inputs = len(self.births.found)
        self.within = Within(self.births, self.gates)

    @contextlib.contextmanager
    def on(self, replica: Replica) -> Iterator[None]:
        """Treat the random weights' noise as born with them."""
        for given, value in replica.values:
            value.loc, birth = marked(value.loc)
            self.within.add(value, birth, given)
            self.births.add_leaf(birth)
        yield

    def before(self, call: Call) -> Call:
        """Leave a call as it is."""
        return call

    def after(self, call: Call, result: Any) -> Any:
        """Refuse noise inside the model, which a Jacobian by the inputs does not see."""
        if call.operation.acts(call):
            raise ValueError(
                f"method='linear' follows the noise of the inputs only, but {call.op!r} at {where()} adds noise of its "
                "own: use method='ap2'"
            )
        self.within.met(call)
        if self.within.use is not None:
            self._shared(result, self.within.use.noise.detach())
        return result
