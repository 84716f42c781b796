"""Watchers that change variances in a pass that is followed."""

from typing import Any

import torch

from momentprop.correlation.following import Following
from momentprop.dispatch import Call
from momentprop.dispatch.context import Chain, Watcher
from momentprop.values import Independent


class Shielded(Chain):
    r"""Watchers that are shown a result once its births are known, and through whose work the adjoint does not pass.

    So the rest $r = \sigma'^2 - (J \circ J)\,v$ of a mixing operation takes $\sigma'^2$ as AP2 gives it, under the
    independence that the second term has too. A corrected $\sigma'^2$ holds what inputs that vary together add, which
    the adjoint brings by itself.
    """

    def __init__(self, following: Following, *watchers: Watcher) -> None:
        super().__init__(*watchers)
        self.following = following

    def after(self, call: Call, result: Any) -> Any:
        """Return what the watchers make of a result, with a variance that is held constant."""
        before = result.variance if isinstance(result, Independent) else None
        with torch.set_grad_enabled(self.following.tracked):
            result = super().after(call, result)
            if isinstance(result, Independent):
                if result.variance is not before:  # a view stays one
                    result.variance = self.following.gates.variance(result.variance)
                self.following.within.known(result)
        return result
