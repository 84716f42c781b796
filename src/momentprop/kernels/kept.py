"""Graphs of large kernels, kept for many backward passes while there is room.

A kernel usually saves only its inputs, and each backward pass runs it again. Where many passes follow, as with
correlations, keeping what it computes is worth the memory.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_ROOM: ContextVar[list[int] | None] = ContextVar("room", default=None)


@contextlib.contextmanager
def keeping(room: int) -> Iterator[None]:
    """Inside, keep graphs of up to this many bytes in total."""
    token = _ROOM.set([room])
    try:
        yield
    finally:
        _ROOM.reset(token)


def takes_room(size: Callable[[], int]) -> bool:
    """Reserve the bytes of a graph, and return whether there was room."""
    room = _ROOM.get()
    if room is None or room[0] < (bytes_ := size()):
        return False
    room[0] -= bytes_
    return True
