"""What is running: a `propagate` call, as the operations inside it see it."""

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
"""Makes the result of an operation that has no rule, from the type of its values, the operation and its arguments."""


class Watcher:
    """Is shown the result of every operation on values, except those inside a rule, and may give another one."""

    enters_composites: bool = False  # it is shown the operations that composites are made of, and not these
    needs_graph: bool = False  # the pass records an autograd graph, also where gradients are switched off

    def on(self, replica: Replica) -> contextlib.AbstractContextManager[Any]:
        """Look into the replica that a pass runs on."""
        return contextlib.nullcontext()

    def start(self, inputs: Sequence[Any]) -> None:
        """Begin a forward pass with these arguments."""

    def enter(self, inputs: Sequence[Any], given: Sequence[Any]) -> None:
        """See what the model is given for these arguments: the arguments themselves, or values made of them."""

    def before(self, call: Call) -> Call:
        """Return the call that is made in the place of this one, perhaps with other values; asked if `needs_graph`."""
        return call

    def after(self, call: Call, result: Any) -> Any:
        """Return what becomes of the fresh result of an operation."""
        return result

    def around(self, call: Call, run: Callable[[], Any]) -> Any:
        """Run a composite that is entered: the operations it is made of are shown, and it is not."""
        return run()

    def finish(self) -> None:
        """End a forward pass that has met no error."""


class Chain(Watcher):
    """Several watchers: each is shown what the one before it gave.

    If one of them enters composites, those that do not are shown the composites all the same, and nothing inside.
    """

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers
        self.inside = 0  # how many composites are entered
        self.enters_composites = any(watcher.enters_composites for watcher in watchers)
        self.needs_graph = any(watcher.needs_graph for watcher in watchers)

    @contextlib.contextmanager
    def on(self, replica: Replica) -> Iterator[None]:
        """Look into the replica that a pass runs on."""
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
        """See what the model is given for these arguments."""
        for watcher in self.watchers:
            watcher.enter(inputs, given)

    def before(self, call: Call) -> Call:
        """Return the call that is made in the place of this one."""
        for watcher in self.watchers:
            call = watcher.before(call)
        return call

    def after(self, call: Call, result: Any) -> Any:
        """Return what becomes of the fresh result of an operation."""
        for watcher in self.watchers:
            if not self.inside or watcher.enters_composites:
                result = watcher.after(call, result)
        return result

    def around(self, call: Call, run: Callable[[], Any]) -> Any:
        """Run a composite that some of them enter."""
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
        """End a forward pass that has met no error."""
        for watcher in self.watchers:
            watcher.finish()


class Context(TorchFunctionMode):
    """A mode that sees every torch operation while it is entered, and what the dispatcher asks of it."""

    fallback: Fallback | None = None
    watcher: Watcher | None = None  # none while a rule runs: the operations inside are the rule's own
    suspended: bool = False  # then operations on values find their rules as if there were no context

    def run(
        self,
        function: Callable[..., Any],
        body: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        values: Sequence[Any],
    ) -> Any:
        """Apply an operation with these values among its arguments; `body` is what it does to plain tensors."""
        raise NotImplementedError

    def seen(self, x: Any) -> Any:
        """Return the value that a plain tensor has become in this pass, or anything else itself."""
        return x


def current() -> Context | None:
    """Return the innermost context that is entered in this thread."""
    return innermost(Context)


def in_a_model() -> bool:
    """Return whether a model is running, by the live frames: while a rule runs, no context is entered."""
    if current() is not None:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), nn.Module | Context):
            return True
        frame = frame.f_back
    return False


def seen(x: Any) -> Any:
    """Return the value that a plain tensor has become in the running pass, or anything else itself."""
    context = current()
    return x if context is None else context.seen(x)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Let rules use values of a type of their own, which the context would convert to its type."""
    context = current()
    if context is None or context.suspended:
        yield
        return
    context.suspended = True
    try:
        yield
    finally:
        context.suspended = False
