"""Methods that refuse a network: the table says so and goes on."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def refusal(refused: dict[str, str], name: str) -> Iterator[None]:
    """Note under a name why a method cannot run, instead of ending the whole experiment."""
    try:
        yield
    except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        refused[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
