"""What is running: a `propagate` call, as the operations inside it see it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from momentprop.torch_compat.modes import innermost

Fallback = Callable[[type[Any], Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""Makes the result of an operation that has no rule, from the type of its values, the operation and its arguments."""


class Watcher:
    """Is shown the result of every operation on values, those inside a rule excepted, and may give another one."""

    def start(self, inputs: Sequence[Any]) -> None:
        """A forward pass begins with these arguments."""

    def after(self, op: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """What becomes of the fresh result of an operation."""
        return result

    def finish(self) -> None:
        """The forward pass has ended without an error."""


class Context(TorchFunctionMode):
    """A mode that sees every torch operation while it is entered, and what the dispatcher asks of it."""

    fallback: Fallback | None = None
    watcher: Watcher | None = None  # none while a rule runs: the operations inside are the rule's own
    suspended: bool = False  # then operations on values find their rules as if there were no context

    def on_plain(
        self, function: Callable[..., Any], body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Apply an operation without a value among its arguments; `body` is what it does to plain tensors."""
        return body(*args, **kwargs)


def current() -> Context | None:
    """The innermost context that is entered in this thread."""
    return innermost(Context)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Let rules use values of a type of their own, which the context would make values of its type."""
    context = current()
    if context is None or context.suspended:
        yield
        return
    context.suspended = True
    try:
        yield
    finally:
        context.suspended = False
