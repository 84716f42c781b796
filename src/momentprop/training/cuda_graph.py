"""`GraphedStep`: a training step that is recorded as a CUDA graph and replayed."""

from collections.abc import Callable

import torch
from torch import Tensor

from momentprop.codegen import programs

_WARM_UP = 3  # calls in which libraries choose their algorithms and an optimizer creates its state


class GraphedStep:
    """A function of one tensor of one shape, recorded as a CUDA graph at its fourth call and replayed from then on.

    A step of AP2 has more than a thousand small operations, which a GPU finishes faster than Python can launch them. A
    replay launches all of them together. All other tensors that the function reads or writes must keep their memory.
    """

    def __init__(self, function: Callable[[Tensor], None]) -> None:
        self.function, self.calls = function, 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Tensor) -> None:
        """Call the function, or replay it."""
        if self.calls < _WARM_UP:
            self.calls += 1
            self._call_aside(batch)
            return
        if self.graph is None:
            programs.wait()  # a build in the background would disturb the recording, and come too late for it
            self.batch, self.graph = batch.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):  # records, but computes nothing
                self.function(self.batch)
        self.batch.copy_(batch)
        self.graph.replay()

    def _call_aside(self, batch: Tensor) -> None:
        """Call the function on a side stream, which CUDA graphs require for the calls before recording."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.function(batch)
        torch.cuda.current_stream().wait_stream(self.stream)
