"""What a pass's autograd graph depends on, and how much memory it holds."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from momentprop.correlation.births import Births
from momentprop.dispatch import Call
from momentprop.dispatch.context import Watcher
from momentprop.values import Independent


class TooLarge(Exception):  # noqa: N818 (nobody outside sees it)
    """The graph of a pass exceeds its memory limit."""


class Bounds(NamedTuple):
    """How many bytes a pass may hold: its graph, and any one result's probes."""

    graph: int
    probes: int = sys.maxsize


class Counting(Watcher):
    """Counts a graph's memory: every result's mean and variance, and as much again for its derivative.

    A result's probes count too, with the rests kept from them.
    """

    def __init__(self, bounds: Bounds | None) -> None:
        self.bounds = bounds
        self.bytes = 0
        self.probes = 0  # the bytes of the largest result's probes

    def after(self, call: Call, result: Any) -> Any:
        """Count a result's memory, and stop a pass that exceeds the limit."""
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Independent):
                probes = sum(part.nbytes for part in value.parts[2:])
                self.bytes += 4 * value.loc.nbytes + 2 * probes
                self.probes = max(self.probes, probes)
        if self.bounds is not None and (self.bytes > self.bounds.graph or self.probes > self.bounds.probes):
            raise TooLarge
        return result


def depends_on(loc: Tensor, births: Births) -> bool:
    """Return whether a tensor moves with any birth."""
    born = {birth.edge.node for birth in births.found}
    return any(node in born for node in _nodes([loc]))


def has_foreign_leaves(means: Iterable[Tensor], births: Births) -> bool:
    """Return whether means or births depend on a tensor that requires a gradient and is not ours."""
    own = births.leaves | {birth.edge.node for birth in births.found}
    noise = [x for birth in births.found for x in (birth.own, birth.shared, birth.factors) if x is not None]
    noise += [x for birth in births.found if birth.use is not None for x in birth.use.tensors]
    return any(hasattr(node, "variable") and node not in own for node in _nodes([*means, *noise]))


def _nodes(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """Yield the nodes of the graph behind some tensors, each once."""
    waiting = [get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
