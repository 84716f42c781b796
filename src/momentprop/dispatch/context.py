"""What is running: a `propagate` call, as the operations inside see it."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from momentprop.dispatch.call import Call
from momentprop.torch_compat.modes import innermost
from momentprop.torch_compat.replica import Replica

Fallback = Callable[[type[Any], Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""Makes the result of an operation without a rule, from the type of its values, the operation and its arguments."""


class Watcher:
    """Sees the result of every operation on values, except inside a rule, and can replace it."""

    enters_composites: bool = False  # it sees the operations inside composites instead of the composites
    needs_graph: bool = False  # the pass records an autograd graph, even where gradients are off

    def on(self, replica: Replica) -> contextlib.AbstractContextManager[Any]:
        """Inspect the replica that a pass runs on."""
        return contextlib.nullcontext()

    def start(self, inputs: Sequence[Any]) -> None:
        """Begin a forward pass with these arguments."""

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """See what the model gets for these arguments: the arguments themselves, or values made from them."""

    def before(self, call: Call) -> Call:
        """Return the call to make instead of this one, perhaps with other values; only called if `needs_graph`."""
        return call

    def after(self, call: Call, result: Any) -> Any:
        """Return what replaces an operation's fresh result."""
        return result

    def around(self, call: Call, run: Callable[[], Any]) -> Any:
        """Run a composite that the watcher enters: it sees the operations inside, and not the composite."""
        return run()

    def finish(self) -> None:
        """End a forward pass that raised no error."""


class Chain(Watcher):
    """Several watchers: each sees what the previous one returned.

    If one of them enters composites, the others still see the composites and nothing inside.
    """

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers
        self.inside = 0  # how many composites we are inside
        self.enters_composites = any(watcher.enters_composites for watcher in watchers)
        self.needs_graph = any(watcher.needs_graph for watcher in watchers)

    @contextlib.contextmanager
    def on(self, replica: Replica) -> Iterator[None]:
        """Inspect the replica that a pass runs on."""
        with contextlib.ExitStack() as stack:
            for watcher in self.watchers:
                stack.enter_context(watcher.on(replica))
            yield

    def start(self, inputs: Sequence[Any]) -> None:
        """Begin a forward pass with these arguments."""
        self.inside = 0
        for watcher in self.watchers:
            watcher.start(inputs)

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """See what the model gets for these arguments."""
        for watcher in self.watchers:
            watcher.enter(inputs, given)

    def before(self, call: Call) -> Call:
        """Return the call to make instead of this one."""
        for watcher in self.watchers:
            call = watcher.before(call)
        return call

    def after(self, call: Call, result: Any) -> Any:
        """Return what replaces an operation's fresh result."""
        for watcher in self.watchers:
            if not self.inside or watcher.enters_composites:
                result = watcher.after(call, result)
        return result

    def around(self, call: Call, run: Callable[[], Any]) -> Any:
        """Run a composite that some watchers enter."""
        self.inside += 1
        try:
            result = run()
        finally:
            self.inside -= 1
        for watcher in self.watchers:
            if not self.inside and not watcher.enters_composites:
                result = watcher.after(call, result)
        return result

    def finish(self) -> None:
        """End a forward pass that raised no error."""
        for watcher in self.watchers:
            watcher.finish()


class Context(TorchFunctionMode):
    """A mode that sees every torch operation while it is active, and what the dispatcher asks of it."""

    fallback: Fallback | None = None
    watcher: Watcher | None = None  # none while a rule runs: operations inside are the rule's own
    suspended: bool = False  # then operations on values find their rules as if there were no context

    def run(
        self,
        function: Callable[..., Any],
        body: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        values: Sequence[Any],
    ) -> Any:
        """Apply an operation with these values among its arguments; `body` is its function of plain tensors."""
        raise NotImplementedError

    def seen(self, x: Any) -> Any:
        """Return the value that a plain tensor has become in this pass; return anything else unchanged."""
        return x


def current() -> Context | None:
    """Return the innermost active context of this thread."""
    return innermost(Context)


def in_a_model() -> bool:
    """Return whether a model is running, judged by the live frames: while a rule runs, no context is active."""
    if current() is not None:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), nn.Module | Context):
            return True
        frame = frame.f_back
    return False


def seen(x: Any) -> Any:
    """Return the value that a plain tensor has become in the running pass; return anything else unchanged."""
    context = current()
    return x if context is None else context.seen(x)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Let rules use values of other types, which the context would otherwise convert to its own."""
    context = current()
    if context is None or context.suspended:
        yield
        return
    context.suspended = True
    try:
        yield
    finally:
        context.suspended = False
