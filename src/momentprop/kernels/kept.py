"""Graphs of large kernels that are kept for many backward passes, as far as there is room for them.

A kernel usually saves its inputs alone, and each backward pass runs it again. Where many passes will come, as when
correlations are followed, it is worth memory to keep what it computes.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_ROOM: ContextVar[list[int] | None] = ContextVar("room", default=None)


@contextlib.contextmanager
def keeping(room: int) -> Iterator[None]:
    """Inside, keep graphs of so many bytes together."""
    token = _ROOM.set([room])
    try:
        yield
    finally:
        _ROOM.reset(token)


def takes_room(size: Callable[[], int]) -> bool:
    """Take the bytes of a graph from the room, and return whether there were as many."""
    room = _ROOM.get()
    if room is None or room[0] < (bytes_ := size()):
        return False
    room[0] -= bytes_
    return True
