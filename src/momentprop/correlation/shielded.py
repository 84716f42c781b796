"""Watchers that change variances in a pass that follows correlations."""

from typing import Any

import torch

from momentprop.correlation.following import Following
from momentprop.dispatch import Call
from momentprop.dispatch.context import Chain, Watcher
from momentprop.values import Independent


class Shielded(Chain):
    r"""Watchers that see a result once its births are known, and whose changes block the adjoint.

    So the rest $r = \sigma'^2 - (J \circ J)\,v$ of a mixing operation uses AP2's $\sigma'^2$, which assumes
    independence as the second term does. A corrected $\sigma'^2$ includes what inputs add by varying together, which
    the adjoint supplies itself.
    """

    def __init__(self, following: Following, *watchers: Watcher) -> None:
        super().__init__(*watchers)
        self.following = following

    def after(self, call: Call, result: Any) -> Any:
        """Return a result as the watchers change it, with its variance held constant."""
        before = result.variance if isinstance(result, Independent) else None
        with torch.set_grad_enabled(self.following.tracked):
            result = super().after(call, result)
            if isinstance(result, Independent):
                if result.variance is not before:  # a view stays a view
                    result.variance = self.following.gates.variance(result.variance)
                self.following.within.known(result)
        return result
